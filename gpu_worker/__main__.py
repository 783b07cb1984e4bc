"""`python -m gpu_worker`: the program of a GPU machine."""

import sys

from gpu_worker.boot import main

if __name__ == "__main__":
    sys.exit(main())
