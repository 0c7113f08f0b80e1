"""What happens to each field of a request: honoured, refused by name, or documented as having no effect.

The rule. A field that this server acts on is in the request models. Of the others, one that would change what the
answer says, or its shape, is *refused*, unless its value asks for nothing (``functions: []``); one that is only
book-keeping, the caller's or a provider's, has *no effect*; a *hint* on style can't be obeyed and can't break a
contract either, so it is ignored, and the answer says so in the header ``x-ullage-ignored-fields``. A field that nobody
knows is treated like a hint: clients send new fields all the time, and must not break. ``null`` is the same as absent,
everywhere.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict

from ullage.base.errors import InvalidRequestError

IGNORED_FIELDS_HEADER = "x-ullage-ignored-fields"

MAX_NAMES_SHOWN = 20

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FieldRule:
    """What becomes of a field that isn't honoured."""

    rule: Literal["refused", "no effect", "hint"]
    reason: str
    neutral: tuple[object, ...] = ()
    """Values of a refused field that ask for nothing, and are accepted."""


def _refused(reason: str, *neutral: object) -> FieldRule:
    return FieldRule("refused", reason, neutral)


def _no_effect(reason: str) -> FieldRule:
    return FieldRule("no effect", reason)


_OLD_TOOLS = "it is the old form of tools and tool_choice"
_OTHER_CONSTRAINTS = "use response_format, structured_outputs or logit_bias"
_NO_BEAMS = "beam search is not supported"
_NO_PROMPT_LOGPROBS = "log-probabilities of the prompt are not supported"
_AS_STORED = "the model's own settings are used"

FIELD_RULES: Mapping[str, FieldRule] = {
    # OpenAI
    "functions": _refused(_OLD_TOOLS, []),
    "function_call": _refused(_OLD_TOOLS, "none", "auto"),
    "suffix": _refused("filling in the middle is not supported", ""),
    "audio": _refused("the model makes text only"),
    "modalities": _refused("the model makes text only", ["text"]),
    "prediction": _refused("predicted outputs are not supported"),
    "web_search_options": _refused("web search is not supported"),
    "moderation": _refused("moderation is not supported"),
    "store": _no_effect("nothing is stored, whatever it says: no answer can be asked for again"),
    "service_tier": _no_effect("there is one tier"),
    "user": _no_effect("book-keeping of the caller"),
    "safety_identifier": _no_effect("book-keeping of the caller"),
    "metadata": _no_effect("book-keeping of the caller"),
    "prompt_cache_key": _no_effect("prefixes are found by their content"),
    "prompt_cache_retention": _no_effect("prefixes stay cached while there is room"),
    "reasoning_effort": FieldRule("hint", "the model has no such setting"),
    "verbosity": FieldRule("hint", "the model has no such setting"),
    # vLLM and others
    "use_beam_search": _refused(_NO_BEAMS, False),
    "length_penalty": _refused(_NO_BEAMS, 1, 1.0),
    "prompt_logprobs": _refused(_NO_PROMPT_LOGPROBS),
    "allowed_token_ids": _refused(_OTHER_CONSTRAINTS, []),
    "bad_words": _refused(_OTHER_CONSTRAINTS, []),
    "json_schema": _refused(_OTHER_CONSTRAINTS),
    "structural_tag": _refused(_OTHER_CONSTRAINTS),
    "guided_whitespace_pattern": _refused("white space in JSON can't be chosen"),
    "guided_decoding_backend": _no_effect("there is one"),
    "logits_processors": _refused("code from requests is not run", []),
    "include_stop_str_in_output": _refused("stop texts are never part of the output", False),
    "skip_special_tokens": _refused("special tokens are never part of the text", True),
    "spaces_between_special_tokens": _refused("special tokens are never part of the text", True),
    "truncate_prompt_tokens": _refused("prompts are never cut"),
    "prompt_embeds": _refused("prompts are text or token ids"),
    "chat_template": _refused(_AS_STORED),
    "chat_template_kwargs": _refused(_AS_STORED, {}),
    "continue_final_message": _refused("the last message can't be continued", False),
    "documents": _refused("documents belong in a message", []),
    "return_tokens_as_token_ids": _refused("use return_token_ids", False),
    "mm_processor_kwargs": _refused("the model reads text only", {}),
    "priority": _refused("requests are served in order of arrival", 0),
}
"""Every field that is known and not honoured, in all request kinds."""


class RequestFields(BaseModel):
    """The body of a request. None means absent."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False, use_attribute_docstrings=True)

    def extra_fields(self) -> dict[str, object]:
        """Fields that no model takes, by name; those of nested objects with their path."""
        return dict(self.model_extra or {})


def check_extra_fields(extra: Mapping[str, object]) -> tuple[str, ...]:
    """Applies the rules to the fields that no request model takes; returns the names that the answer must report.

    :raises InvalidRequestError: a field that would have to be honoured
    """
    reported = []
    for name, value in extra.items():
        rule = FIELD_RULES.get(name)
        if value is None or (rule is not None and rule.rule == "no effect"):
            continue
        if rule is None or rule.rule == "hint":
            reported.append(name)
        elif not any(_same(value, neutral) for neutral in rule.neutral):
            allowed = f"; allowed: {_listed(rule.neutral)}" if rule.neutral else ""
            raise InvalidRequestError(f"{name} is not supported here: {rule.reason}{allowed}", param=name)
    if reported:
        logger.debug("request fields without effect here: %s", ignored_fields_header(reported))
    return tuple(reported)


def ignored_fields_headers(names: tuple[str, ...]) -> dict[str, str]:
    """What tells a client of fields that had no effect; nothing where all had one."""
    return {IGNORED_FIELDS_HEADER: ignored_fields_header(names)} if names else {}


def ignored_fields_header(names: Iterable[str]) -> str:
    """Header text for these names. They come from the client: percent-encoded, and not without end. A name of no
    characters is shown as ``""``: a header may not end with a space, and the list would."""
    names = list(names)
    shown = [quote(name[:50], errors="replace") or '""' for name in names[:MAX_NAMES_SHOWN]]
    if len(names) > MAX_NAMES_SHOWN:
        shown.append(f"and {len(names) - MAX_NAMES_SHOWN} more")
    return ", ".join(shown)


def _same(value: object, neutral: object) -> bool:
    """Equal, and of the same kind: ``0`` is not ``False``."""
    return type(value) is type(neutral) and value == neutral


def _listed(values: tuple[object, ...]) -> str:
    words = {True: "true", False: "false"}
    return ", ".join(words[v] if isinstance(v, bool) else str(v).replace("'", '"') for v in values)
