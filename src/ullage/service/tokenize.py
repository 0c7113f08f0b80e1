"""POST /tokenize and POST /detokenize: what the model reads, and what it says, as token ids.

``detokenize`` gives back the text that ``tokenize`` was given: a BOS that was put first is left out, and the names of
other control tokens are written out. What the vocabulary has no token for is lost, and what it doesn't tell apart is
made one (U+2581 is a space to SentencePiece), as it is to the model.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from ullage.access.tenant import may_use, tenant_of
from ullage.protocol.fields import ignored_fields_headers
from ullage.protocol.json_text import encode_json
from ullage.protocol.tokenize import Detokenized, DetokenizeRequest, TokenizeChatRequest, TokenizeTextRequest, Tokens
from ullage.service.chat import render_prompt
from ullage.service.logprobs import token_name
from ullage.service.request_body import read_fields
from ullage.service.service import Service
from ullage.service.token_ids import check_vocabulary

TokenizeRequest = TokenizeTextRequest | TokenizeChatRequest


async def tokenize(service: Service, request: Request) -> Response:
    fields, ignored = await read_fields(service, request, _tokenize_request)
    _check_model(service, fields.model, request.scope)
    await service.charge(tenant_of(request.scope), 0)
    return _answer(await service.off_loop(_tokens, service, fields), ignored)


async def detokenize(service: Service, request: Request) -> Response:
    fields, ignored = await read_fields(service, request, DetokenizeRequest)
    _check_model(service, fields.model, request.scope)
    await service.charge(tenant_of(request.scope), 0)
    return _answer(await service.off_loop(_text, service, fields.tokens), ignored)


def _tokenize_request(body: Mapping[str, object]) -> type[TokenizeRequest]:
    return TokenizeChatRequest if body.get("messages") is not None else TokenizeTextRequest


def _tokens(service: Service, fields: TokenizeRequest) -> bytes:
    tokenizer = service.model.tokenizer
    if isinstance(fields, TokenizeChatRequest):
        token_ids = list(render_prompt(service, fields)[0])
    else:
        service.text_limit.check([fields.prompt], "prompt")
        token_ids = tokenizer.encode(fields.prompt, add_special_tokens=fields.add_special_tokens is not False)
    tokens = Tokens(count=len(token_ids), max_model_len=service.engine.max_model_len, tokens=token_ids)
    if fields.return_token_strs:
        tokens["token_strs"] = [token_name(token_id, tokenizer) for token_id in token_ids]
    return encode_json(tokens)


def _text(service: Service, token_ids: list[int]) -> bytes:
    tokenizer = service.model.tokenizer
    service.text_limit.check_num_tokens(len(token_ids), "tokens")
    check_vocabulary(service, token_ids, "tokens")
    if tokenizer.add_bos and token_ids[:1] == [tokenizer.bos_token_id]:
        token_ids = token_ids[1:]
    return encode_json(Detokenized(prompt=tokenizer.decode(token_ids, skip_special_tokens=False)))


def _check_model(service: Service, name: str | None, scope: Scope) -> None:
    """These two requests may leave it out."""
    if name is None:
        name = next((name for name in service.model.names if may_use(scope, name)), service.model.names[0])
    service.check_model(name, scope)


def _answer(body: bytes, ignored_fields: tuple[str, ...]) -> Response:
    return Response(body, headers=ignored_fields_headers(ignored_fields), media_type="application/json")
