"""Whether what clients saw, what the log says and what the server counted agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from tests.chaos.clients import Account

ACCESS_LOGGER = "ullage.service.observation"
LOST = "error"
"""Why a request ended that a dying engine took with it: what it had generated and not yet sent is known to nobody."""


def compare_books(account: Account, lines: Sequence[dict[str, Any]], metrics: str, ledger: dict[str, Any]) -> list[str]:
    """
    :param lines: of the server's log
    :param metrics: after the last request
    :return: what doesn't agree
    """
    access = [line for line in lines if line["logger"] == ACCESS_LOGGER and line["path"].startswith("/v1/c")]
    findings = [f"log: {line['message']}" for line in lines if "traceback" in line]
    findings += _lines_of_clients(account, access)
    findings += _totals(access, _samples(metrics))
    findings += _nothing_left(ledger)
    return findings


def _lines_of_clients(account: Account, access: Sequence[dict[str, Any]]) -> list[str]:
    counts = Counter(line["request_id"] for line in access)
    by_id = {line["request_id"]: line for line in access}
    findings = [f"{request_id}: {count} lines in the log" for request_id, count in counts.items() if count > 1]
    for request_id, (num_prompt, num_output) in account.completed.items():
        line = by_id.get(request_id)
        if line is None:
            findings.append(f"{request_id}: completed, but not in the log")
            continue
        num_choices = len(line["finish_reasons"])
        logged = (line["prompt_tokens"], line["output_tokens"])
        if logged != (num_prompt * num_choices, num_output):
            findings.append(f"{request_id}: usage says {(num_prompt, num_output)}, the log {logged}")
    return findings


def _totals(access: Sequence[dict[str, Any]], samples: dict[str, float]) -> list[str]:
    """Tokens that a dying engine took with it are in its totals, and in no line."""
    reasons = Counter(reason for line in access for reason in line.get("finish_reasons", ()))
    findings = []
    for reason, count in reasons.items():
        counted = samples.get(f'ullage_request_success_total{{finished_reason="{reason}"}}', 0)
        if counted != count:
            findings.append(f"{count} requests ended by {reason} in the log, {counted:g} in the metrics")
    logged = sum(line.get("output_tokens", 0) for line in access)
    generated = samples["ullage_generation_tokens_total"]
    print(f"tokens generated: {generated:g} counted by the engine, {logged} in the log")
    print("endings in the log:", dict(reasons))
    if generated < logged or (generated != logged and not reasons[LOST]):
        findings.append(f"{logged} tokens in the log, {generated:g} in the metrics")
    return findings


def _nothing_left(ledger: dict[str, Any]) -> list[str]:
    left = {
        "reserved bytes": ledger["kv_pool"]["reserved_bytes"],
        "used bytes": ledger["kv_pool"]["used_bytes"],
        "promised blocks": ledger["blocks"]["promised"],
        "held blocks": ledger["blocks"]["total"] - ledger["blocks"]["free"],
        "running": ledger["requests"]["running"],
        "waiting": ledger["requests"]["waiting"],
    }
    return [f"{name} left: {count}" for name, count in left.items() if count]


def _samples(metrics: str) -> dict[str, float]:
    """By name and labels, as the text has them."""
    samples = {}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
            samples[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
    return samples
