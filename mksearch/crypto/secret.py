"""A key that does not show itself."""

from __future__ import annotations

from mksearch.errors import ParameterError
from mksearch.params import KEY_BYTES

__all__ = ["SecretKey"]


class SecretKey:
    """32 secret bytes with a redacted ``repr``, no ``==``, no hash and no pickle."""

    __hash__ = None  # type: ignore[assignment]
    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        """Hold ``value``.

        Raises:
            ParameterError: it does not have 32 bytes.
        """
        if len(value) != KEY_BYTES:
            raise ParameterError(f"a key has {KEY_BYTES} bytes, not {len(value)}")
        self._value = bytes(value)

    def reveal(self) -> bytes:
        """Return the 32 secret bytes, for the primitive that needs them and nothing else."""
        return self._value

    def __repr__(self) -> str:
        return "SecretKey(<redacted>)"

    def __eq__(self, other: object) -> bool:
        raise TypeError("secret keys are not compared")

    def __reduce__(self) -> str:
        raise TypeError("secret keys are never pickled")
