"""What ``quantization_config`` says: which format, and which modules keep the model's own type."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ullage.base.errors import ConfigError
from ullage.plan.architecture.fields import Fields
from ullage.plan.weights import formats
from ullage.plan.weights.formats import AnyFormat
from ullage.plan.weights.tensors import Weight

_SKIP_LISTS = ("modules_to_not_convert", "ignore", "ignored_layers", "llm_int8_skip_modules", "exclude_modules")
_NESTED_REPEATS = re.compile(r"[+*}]\)[+*{]")
"""A pattern like ``(a+)+`` may never come to an end."""


@dataclass(frozen=True, slots=True)
class Quantisation:
    """Formats of a checkpoint's matrices.

    :ivar groups: module patterns and their format, the first that fits counts; no pattern: all
    :ivar kept: names of modules that keep the model's type, and everything below them
    :ivar kept_anywhere: the same, for names that may stand anywhere in a path
    :ivar kept_patterns: the same, as compiled patterns
    """

    groups: tuple[tuple[re.Pattern[str] | None, AnyFormat], ...]
    kept: frozenset[str] = frozenset()
    kept_anywhere: tuple[str, ...] = ()
    kept_patterns: tuple[re.Pattern[str], ...] = ()

    def format_of(self, weight: Weight, path: str) -> AnyFormat | None:
        """The format of a weight; None: it keeps the model's type.

        :param path: its name in the checkpoint, like ``model.layers.3.mlp.up_proj``
        """
        if not weight.linear or self._is_kept(path):
            return None
        return next((fmt for pattern, fmt in self.groups if pattern is None or pattern.search(path)), None)

    def _is_kept(self, path: str) -> bool:
        parts = path.split(".")
        if any(".".join(parts[:end]) in self.kept for end in range(1, len(parts) + 1)):
            return True
        dotted = f".{path}."
        if any(f".{name}." in dotted for name in self.kept_anywhere):
            return True
        return any(pattern.search(path) for pattern in self.kept_patterns)


def quantisation_of(config: Mapping[str, object] | None) -> Quantisation | None:
    """None: not quantised.

    :raises ConfigError: a method or a detail that isn't known
    """
    if config is None:
        return None
    fields = Fields.of(config, "config.json: quantization_config")
    method = fields.text("quant_method", default="").lower().replace("_", "-")
    if method not in _METHODS:
        raise ConfigError(
            f"{fields.path}: quant_method is {method!r}, a format that isn't known",
            hint="known are " + ", ".join(_METHODS),
        )
    groups = (*_expert_groups(fields), *_METHODS[method](fields))
    names = [name for list_name in _SKIP_LISTS for name in fields.texts(list_name) or ()]
    patterns = tuple(_pattern(fields, name) for name in names if name.startswith("re:") or "*" in name)
    plain = [name for name in names if not name.startswith("re:") and "*" not in name]
    anywhere = tuple(name for name in plain if not any(part.isdigit() for part in name.split(".")))
    return Quantisation(groups, frozenset(plain), anywhere, patterns)


_Groups = tuple[tuple[re.Pattern[str] | None, AnyFormat], ...]


def _expert_groups(fields: Fields) -> _Groups:
    """Experts in a type of their own, which the model's configuration names (DeepSeek V4)."""
    name = fields.text("expert_dtype", default="")
    if not name:
        return ()
    if name != "fp4":
        raise fields.wrong("expert_dtype", "fp4")
    return ((re.compile(r"\.experts\."), formats.MXFP4),)


def _everything(fmt: AnyFormat) -> _Groups:
    return ((None, fmt),)


def _fp8(fields: Fields) -> _Groups:
    block = fields.integers("weight_block_size")
    if block is None:
        return _everything(formats.FP8_PER_TENSOR)
    if len(block) != 2 or not all(block):
        raise fields.wrong("weight_block_size", "two whole numbers above 0")
    return _everything(formats.fp8_in_blocks(*block))


def _awq(fields: Fields) -> _Groups:
    bits, group = fields.integer("bits", "w_bit", default=4, at_most=16), fields.integer("group_size", default=128)
    return _everything(formats.awq(bits, group, zero_points=fields.boolean("zero_point", default=True)))


def _gptq(fields: Fields) -> _Groups:
    bits = fields.integer("bits", at_most=16)
    group = fields.values.get("group_size")
    return _everything(formats.gptq(bits, 0 if group == -1 else fields.integer("group_size")))


def _mxfp4(_: Fields) -> _Groups:
    return _everything(formats.MXFP4)


def _bitsandbytes(fields: Fields) -> _Groups:
    if fields.boolean("load_in_8bit", default=False):
        return _everything(formats.INT8_PER_ROW)
    return _everything(formats.Nf4(nested=fields.boolean("bnb_4bit_use_double_quant", default=False)))


def _modelopt(fields: Fields) -> _Groups:
    inner = fields.section("quantization") or fields
    algorithm = inner.text("quant_algo", default="").upper()
    known = {"FP8": formats.FP8_PER_TENSOR, "NVFP4": formats.NVFP4, "W4A16_NVFP4": formats.NVFP4}
    if algorithm not in known:
        raise inner.wrong("quant_algo", "one of " + ", ".join(known))
    return _everything(known[algorithm])


def _compressed_tensors(fields: Fields) -> _Groups:
    section = fields.section("config_groups")
    if section is None:
        raise ConfigError(f"{fields.path} has no config_groups")
    groups: list[tuple[re.Pattern[str] | None, AnyFormat]] = []
    for name in section.values:
        group = section.section(name)
        if group is None:
            continue
        weights = group.section("weights")
        if weights is None:
            continue
        fmt = _compressed_format(weights)
        for target in group.texts("targets") or ("Linear",):
            everything = not target.startswith("re:") and "." not in target and "*" not in target
            groups.append((None if everything else _pattern(group, target), fmt))
    return tuple(groups)


def _compressed_format(weights: Fields) -> AnyFormat:
    bits = weights.integer("num_bits", at_most=16)
    strategy = weights.text("strategy", default="tensor")
    is_float = weights.text("type", default="int") == "float"
    if strategy in ("group", "tensor_group"):
        group = weights.integer("group_size")
        if is_float and bits == 4:
            return formats.NVFP4 if group == formats.NVFP4_GROUP else formats.MXFP4
        return formats.awq(bits, group, zero_points=not weights.boolean("symmetric", default=True))
    if strategy == "block":
        block = weights.integers("block_structure") or (128, 128)
        return formats.fp8_in_blocks(*block[:2])
    scales = {"channel": 1, "tensor": 0}
    if strategy not in scales:
        raise weights.wrong("strategy", "one of group, tensor_group, block, channel, tensor")
    return formats.WeightFormat(bits, scale_bytes=4, rows_per_scale=scales[strategy])


_METHODS: Mapping[str, Callable[[Fields], _Groups]] = {
    "fp8": _fp8,
    "awq": _awq,
    "gptq": _gptq,
    "mxfp4": _mxfp4,
    "bitsandbytes": _bitsandbytes,
    "modelopt": _modelopt,
    "compressed-tensors": _compressed_tensors,
}


def _pattern(fields: Fields, text: str) -> re.Pattern[str]:
    """A module pattern: ``re:`` and a regular expression, or a shell pattern that also covers what lies below."""
    source = text[3:] if text.startswith("re:") else fnmatch.translate(text).removesuffix(r"\Z") + r"(\.|\Z)"
    if len(source) > 500 or _NESTED_REPEATS.search(source):
        raise ConfigError(f"{fields.path}: {text[:60]!r} is no pattern that can be followed")
    try:
        return re.compile(source)
    except re.error as error:
        raise ConfigError(f"{fields.path}: {text[:60]!r} is no pattern: {error}") from error
