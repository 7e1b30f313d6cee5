"""What stands before the methods of a service: how their handlers are wrapped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["wrap_handler"]

_Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def wrap_handler(handler: Any, one: _Wrap, many: _Wrap) -> Any:
    """Return a handler of gRPC whose method is wrapped.

    Args:
        handler: of any of gRPC's four kinds.
        one: wraps a method with one answer.
        many: wraps a method with a stream of answers.
    """
    kind = "stream" if handler.request_streaming else "unary"
    if handler.response_streaming:
        field, wrap = f"{kind}_stream", many
    else:
        field, wrap = f"{kind}_unary", one
    return handler._replace(**{field: wrap(getattr(handler, field))})
