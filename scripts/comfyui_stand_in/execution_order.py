"""Which node of a prompt runs next: one that shows a result to people, or leads to one soon."""

from collections.abc import Collection

from scripts.comfyui_stand_in.cache import Cache, links
from scripts.comfyui_stand_in.node_classes import CLASSES, Graph


class ExecutionOrder:
    """The nodes that the outputs need and that are not known from before."""

    def __init__(self, prompt: Graph, outputs: Collection[str], cache: Cache) -> None:
        self.prompt = prompt
        self.needs: dict[str, set[str]] = {}
        waiting = list(reversed(outputs if isinstance(outputs, list) else list(outputs)))
        while waiting:
            node_id = waiting.pop()
            if node_id in self.needs:
                continue
            known = cache.get(node_id) is not None
            sources = [] if known else [link[0] for link in links(prompt[node_id]["inputs"])]
            unknown = {source for source in sources if cache.get(source) is None}
            self.needs[node_id] = unknown
            waiting += [source for source in sources if source in unknown]

    def next(self) -> str | None:
        ready = [node_id for node_id, needs in self.needs.items() if not needs]
        if not ready:
            return None
        return min(ready, key=self._steps_to_an_output)

    def done(self, node_id: str) -> None:
        del self.needs[node_id]
        for needs in self.needs.values():
            needs.discard(node_id)

    def _steps_to_an_output(self, node_id: str) -> int:
        """0 for an output, then how many nodes away one is; beyond two nobody counts."""
        reached = {node_id}
        for steps in range(3):
            if any(CLASSES[self.prompt[one]["class_type"]].is_output for one in reached):
                return steps
            reached = {one for one, needs in self.needs.items() if needs & reached}
        return 3
