"""A process that fetches one asset: `python -m … FOLDER URL HASH LARGEST_FILE_BYTES`.

Says "fetching", then the hash of what it got, or why it got nothing.
"""

import hashlib
import resource
import signal
import sys
from pathlib import Path

from gpu_worker.assets import AssetCache, AssetUnavailable


def main() -> int:
    folder, url, content_hash, largest_file_bytes = sys.argv[1:]
    # As good as a full disk: writing beyond it is refused.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(largest_file_bytes),) * 2)
    cache = AssetCache(Path(folder), 10**9)
    say("fetching")
    try:
        with cache.fetch(url, content_hash) as path:
            say(hashlib.sha256(path.read_bytes()).hexdigest())
            sys.stdin.read()  # in use until the other side closes
    except AssetUnavailable as unavailable:
        say(str(unavailable))
        return 1
    return 0


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
