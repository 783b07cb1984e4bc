"""python -m scripts.comfyui_stand_in --port N --folder DIR"""

import argparse
import asyncio
import sys
from pathlib import Path

from scripts.comfyui_stand_in import server


def main() -> None:
    parser = argparse.ArgumentParser(description="A stand-in for ComfyUI, without a GPU.")
    parser.add_argument("--port", type=int, required=True, help="0 takes a free one")
    parser.add_argument("--folder", type=Path, required=True, help="gets input, output and temp")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--max-upload-size", type=float, default=100, help="in megabytes")
    given = parser.parse_args()
    sys.setswitchinterval(0.0005)  # so that messages leave while a prompt is still at work
    built = server.build(given.folder, max_upload_bytes=round(given.max_upload_size * 1024**2))
    asyncio.run(server.run(built, host=given.host, port=given.port))


if __name__ == "__main__":
    main()
