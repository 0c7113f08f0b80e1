"""What the audit log is told of a request: who asked, for what, what it cost, how it ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ullage.access.audit_log import LINE_BYTES, AuditLog
from ullage.access.config import AccessConfig
from ullage.access.gate import route_group
from ullage.base.errors import AuditLogError
from ullage.engine.client import GenerationOutput
from ullage.service.request_record import GENERATION_PATHS, RequestRecord
from ullage.service.served_model import ServedModel

MAX_PATH_CHARS = 200
QUEUED_LINE_BYTES = 2 * LINE_BYTES
"""Of a line's members, until it is written."""
TOKEN_ID_BYTES = 40
"""Of a number and of its place in a tuple."""
CHARACTER_BYTES = 4
"""At most."""
CHOICE_BYTES = 128
"""Of one choice's places in the lists of a line."""


class Auditor:
    """
    :param is_required: nothing is served that can't be written down
    :param with_texts: prompts and answers are written too
    """

    def __init__(self, log: AuditLog, model: ServedModel, *, is_required: bool, with_texts: bool) -> None:
        self.log = log
        self._model = model
        self._is_required = is_required
        self.with_texts = with_texts

    @property
    def refuses(self) -> bool:
        return self._is_required and not self.log.keeps_up

    def check(self) -> None:
        """:raises AuditLogError: what comes now couldn't be written down, and has to be"""
        if self.refuses:
            raise AuditLogError("the audit log can't be written now, and nothing is served without it")

    def note(self, record: RequestRecord) -> None:
        """
        :param record: complete; told of are requests that generate, those that end in an error, and those of admins
        """
        is_of_interest = record.path in GENERATION_PATHS or route_group(record.path) == "admin"
        if not (is_of_interest or record.status >= 400 or record.error_code):
            return
        line = audit_line(record, datetime.now(UTC))  # the record isn't kept: it holds the prompts
        num_bytes = QUEUED_LINE_BYTES + CHOICE_BYTES * len(record.asked)
        if not (self.with_texts and record.asked):
            self.log.write(lambda: line, num_bytes)
            return
        prompts = _prompts(record)
        answers = [record.texts.get(index, "") for index in range(len(record.asked))]
        num_bytes += TOKEN_ID_BYTES * sum(map(len, prompts)) + CHARACTER_BYTES * sum(map(len, answers))
        self.log.write(partial(self._with_texts, line, prompts, answers), num_bytes)

    def _with_texts(
        self, line: Mapping[str, object], prompts: Sequence[Sequence[int]], answers: Sequence[str]
    ) -> Mapping[str, object]:
        return {**line, "prompts": [self._text(prompt) for prompt in prompts], "answers": answers}

    def _text(self, token_ids: Sequence[int]) -> str:
        return self._model.tokenizer.decode(token_ids, skip_special_tokens=False)


def audit_line(record: RequestRecord, ended_at: datetime) -> dict[str, object]:
    """Tokens are those that ``usage`` tells: a prompt counts once for all its choices, if any of them began to run."""
    key = record.key
    line: dict[str, object] = {
        "time": ended_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "id": record.request_id,
        "tenant": "" if key is None else key.tenant,
        "key_id": "" if key is None else key.id,
        "client": None if record.client is None else str(record.client),
        "method": record.method,
        "path": record.path[:MAX_PATH_CHARS],
        "model": record.model,
        "status": record.status,
        "error": record.error_code,
        "total_seconds": round(record.ended_at - record.began_at, 4),
    }
    if not record.asked:
        return line
    ends = record.ends_in_order
    num_prompt_tokens = num_cached_tokens = 0
    for indexes in _choices_by_prompt(record).values():
        begun = [ends[i] for i in indexes if _has_begun(ends[i])]
        if begun:
            num_prompt_tokens += begun[0].num_prompt_tokens
            num_cached_tokens += min(last.num_cached_tokens for last in begun)
    times = [last.times for last in record.ends if last.times is not None]
    return line | {
        "prompt_tokens": num_prompt_tokens,
        "cached_tokens": num_cached_tokens,
        "generated_tokens": record.num_output_tokens,
        "finish_reasons": list(record.finish_reasons),
        "queue_seconds": _least(t.started_at - t.arrived_at for t in times if t.started_at is not None),
        "first_token_seconds": _least(t.first_token_at - t.arrived_at for t in times if t.first_token_at is not None),
    }


def _choices_by_prompt(record: RequestRecord) -> dict[int, list[int]]:
    """Choices of one prompt share the very same ids."""
    choices: dict[int, list[int]] = {}
    for index, request in enumerate(record.asked):
        choices.setdefault(id(request.prompt_token_ids), []).append(index)
    return choices


def _prompts(record: RequestRecord) -> list[Sequence[int]]:
    return [record.asked[indexes[0]].prompt_token_ids for indexes in _choices_by_prompt(record).values()]


def _has_begun(last: GenerationOutput) -> bool:
    return last.times is not None and last.times.started_at is not None


def _least(seconds: Iterable[float]) -> float | None:
    """Of the choices; None: none came so far."""
    return min((round(value, 4) for value in seconds), default=None)


class AuditCollector(Collector):
    """Whether the audit log is whole."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        lost = "Lines that the audit log could not take"
        yield CounterMetricFamily("ullage_audit_lines_lost", lost, value=self._log.num_lost)
        failing = "1 while the audit log can't be written"
        yield GaugeMetricFamily("ullage_audit_log_failing", failing, value=self._log.is_failing)


def open_auditor(config: AccessConfig, model: ServedModel) -> Auditor | None:
    """None where no audit log is asked for.

    :raises ConfigError: its file can't be had
    """
    if config.audit_log_file is None:
        return None
    log = AuditLog(Path(config.audit_log_file), max_bytes=config.audit_log_max_bytes, num_files=config.audit_log_files)
    return Auditor(log, model, is_required=config.audit_log_required, with_texts=config.audit_log_prompts)
