"""Figures in the form that Prometheus reads. Every name and label of them is here.

Labels are fleets, pools, tasks and movements of tokens: few, and none of them grows with use.
"""

from collections.abc import Callable, Iterator
from datetime import datetime

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from models.fleet_figures import FleetFigures
from tasks.figures import Figures

TOKENS = ("credited", "reserved", "consumed", "refunded")

#: name, help, figure; None is not told.
OF_FLEETS: list[tuple[str, str, Callable[[FleetFigures], float | None]]] = [
    ("queue_depth", "Jobs that wait or run.", lambda f: f.queue_depth),
    ("jobs_waiting", "Jobs that wait, also those that back off.", lambda f: f.waiting),
    ("jobs_running", "Jobs that a worker holds.", lambda f: f.running),
    (
        "oldest_waiting_seconds",
        "Since the oldest job that waits was ordered.",
        lambda f: f.oldest_waiting_seconds,
    ),
    (
        "backlog_per_instance",
        "Jobs that wait or run, for each active worker.",
        lambda f: f.backlog_per_instance,
    ),
    ("active_workers", "Workers heard of in the last 5 minutes.", lambda f: f.active_workers),
    (
        "available_capacity",
        "Jobs that active workers could take at once.",
        lambda f: f.available_capacity,
    ),
    (
        "job_processing_p50_seconds",
        "Median duration of the jobs completed in the last 10 minutes.",
        lambda f: f.job_processing_p50,
    ),
    (
        "error_rate",
        "Share of failures among jobs completed or failed in the last 5 minutes.",
        lambda f: f.error_rate,
    ),
    ("completed_count", "Jobs completed in the last 5 minutes.", lambda f: f.completed),
    ("failed_count", "Jobs failed in the last 5 minutes.", lambda f: f.failed),
    (
        "lease_expired_count",
        "Leases that timed out in the last 5 minutes.",
        lambda f: f.lease_expired_count,
    ),
    (
        "spot_interruption_count",
        "Jobs requeued because of Spot in the last 5 minutes.",
        lambda f: f.spot_interruption_count,
    ),
    ("dead_letters_open", "Dead letters that wait for a person.", lambda f: f.dead_letters_open),
]


def registry_of(figures: Figures | None) -> CollectorRegistry:
    """To be told. Without figures it is told that there are none."""
    registry = CollectorRegistry()
    registry.register(_Told(figures))
    return registry


class _Told:
    def __init__(self, figures: Figures | None) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("comfyfleet_figures_up", "Whether the figures could be read.")
        up.add_metric([], float(self._figures is not None))
        yield up
        if self._figures is not None:
            yield from _of_fleets(self._figures)
            yield from _of_house(self._figures)
            yield from _of_money(self._figures)
            yield from _of_webhooks(self._figures)
            yield from _of_times(self._figures)


def _of_fleets(figures: Figures) -> Iterator[Metric]:
    for name, text, figure in OF_FLEETS:
        family = GaugeMetricFamily(f"comfyfleet_{name}", text, labels=["fleet", "stage"])
        for fleet in figures.fleets:
            if (value := figure(fleet)) is not None:
                family.add_metric([fleet.slug, fleet.stage], value)
        yield family


def _of_house(figures: Figures) -> Iterator[Metric]:
    totals = figures.totals
    yield SummaryMetricFamily(
        "comfyfleet_job_submission_latency_seconds",
        "From a job's order until its dispatch was there.",
        count_value=totals.get("submissions", 0),  # type: ignore[arg-type]
        sum_value=totals.get("submission_milliseconds", 0) / 1000,
    )
    yield CounterMetricFamily(
        "comfyfleet_orphaned_jobs",
        "Jobs that nobody could dispatch in time, refunded.",
        value=totals.get("orphans", 0),
    )
    yield CounterMetricFamily(
        "comfyfleet_runpod_submission_failures",
        "Submissions that RunPod refused or lost.",
        value=totals.get("runpod_failures", 0),
    )


def _of_money(figures: Figures) -> Iterator[Metric]:
    tokens = CounterMetricFamily(
        "comfyfleet_tokens", "Tokens moved, by the ledger.", labels=["movement"]
    )
    for movement in TOKENS:
        tokens.add_metric([movement], figures.totals.get(movement, 0))
    yield tokens
    difference = GaugeMetricFamily(
        "comfyfleet_ledger_difference_tokens",
        "What the wallets of a pool hold more than its ledger says; 0 is right.",
        labels=["pool"],
    )
    for pool, tokens_off in figures.differences.items():
        difference.add_metric([pool], tokens_off)
    yield difference


def _of_webhooks(figures: Figures) -> Iterator[Metric]:
    gauges = {
        "deliveries_pending": ("Webhooks to be sent, now or later.", figures.webhooks.pending),
        "deliveries_failed": ("Webhooks given up, that are kept.", figures.webhooks.failed),
        "oldest_due_seconds": (
            "For how long the webhook that is due for longest has been due.",
            figures.webhooks.oldest_due_seconds,
        ),
        "endpoints_failing": (
            "Endpoints in use with nothing but failures lately.",
            figures.webhooks.endpoints_failing,
        ),
    }
    for name, (text, value) in gauges.items():
        yield GaugeMetricFamily(f"comfyfleet_webhook_{name}", text, value=value)
    yield CounterMetricFamily(
        "comfyfleet_webhook_deliveries_delivered",
        "Webhooks that their receivers took.",
        value=figures.totals.get("webhooks_delivered", 0),
    )


def _of_times(figures: Figures) -> Iterator[Metric]:
    yield _time("comfyfleet_figures_timestamp_seconds", "When figures were read.", figures.at)
    counted = "When the control worker last counted."
    yield _time("comfyfleet_counted_timestamp_seconds", counted, figures.counted_at)
    if figures.is_publishing:
        published = "When CloudWatch last took figures."
        name = "comfyfleet_cloudwatch_published_timestamp_seconds"
        yield _time(name, published, figures.published_at)
    finished = GaugeMetricFamily(
        "comfyfleet_control_task_finished_timestamp_seconds",
        "When a control task last finished; 0: never.",
        labels=["task"],
    )
    late = GaugeMetricFamily(
        "comfyfleet_control_task_late",
        "Whether a control task should have finished since.",
        labels=["task"],
    )
    for task in figures.control:
        finished.add_metric([task["task"]], _seconds(task["finished_at"]))
        late.add_metric([task["task"]], float(task["is_late"]))
    yield from (finished, late)


def _time(name: str, text: str, at: datetime | None) -> Metric:
    return GaugeMetricFamily(name, f"{text} 0: never.", value=_seconds(at))


def _seconds(at: datetime | None) -> float:
    return at.timestamp() if at else 0.0
