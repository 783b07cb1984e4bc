"""Ends a prompt, and makes sure of it.

ComfyUI answers every interrupt with 200, and loses some: one that comes before the prompt
has begun is forgotten, and a node that reports no progress does not hear it. So it is asked
again until the prompt is neither waiting nor running.
"""

import logging
import time

from gpu_worker.comfyui import ComfyUI, Gone, Refused
from gpu_worker.provider import Unwell

logger = logging.getLogger(__name__)

CONFIRM_SECONDS = 3.0
STOPPED_SECONDS = 1.5  # the same, when somebody waits for the end
ANSWER_SECONDS = 1.0
AGAIN_SECONDS = 0.05


def cancel(comfyui: ComfyUI, prompt_id: str, *, seconds: float = CONFIRM_SECONDS) -> bool:
    """Whether nothing of the prompt is left. Returns soon after so long, whatever happens."""
    until = time.monotonic() + seconds
    was_gone = False
    while (left := until - time.monotonic()) > 0:
        answer_seconds = min(ANSWER_SECONDS, left)
        try:
            comfyui.withdraw(prompt_id, seconds=answer_seconds)
            if _is_over(comfyui, prompt_id, seconds=answer_seconds):
                return True
            was_gone = False
        except Gone:
            if was_gone:
                return True  # with its process everything has ended
            was_gone = True
        except (Unwell, Refused) as trouble:
            logger.warning("Cancelling prompt %s: %s", prompt_id, trouble)
        time.sleep(AGAIN_SECONDS)
    logger.warning("Prompt %s may still run: ComfyUI did not end it in time.", prompt_id)
    return False


def _is_over(comfyui: ComfyUI, prompt_id: str, *, seconds: float) -> bool:
    queue = comfyui.queue(seconds=seconds)
    return prompt_id not in queue.running and prompt_id not in queue.pending
