"""The whole exception tree.

Every error names a cause (``message``) and, where there is one, a cure.  ``code`` is the stable
name that scripts may match on; ``exit_code`` is what a command ends with (docs/architecture.md).
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "AnalyzerError",
    "AnswerRefused",
    "CredentialRefused",
    "EngineFailed",
    "EngineUnavailable",
    "EpochPassed",
    "FormatError",
    "InputError",
    "ManifestExpired",
    "ManifestRefused",
    "ManifestStale",
    "MksearchError",
    "NotEnoughAnswers",
    "NotQualified",
    "OtherTlsKey",
    "ParameterError",
    "PartialKeyRefused",
    "PolicyError",
    "ProfileError",
    "QueryError",
    "RecordRefused",
    "RenewalRefused",
    "ServerRefused",
    "ServerUnreachable",
    "StorageError",
    "TlsRefused",
    "UnsupportedVersion",
    "VerificationError",
]


class MksearchError(Exception):
    """Base of every error that this product raises on purpose.

    Args:
        message: one line that names the cause, with the numbers (have, need).
        cure: one line that says what to do, or "" where nothing can be done.
        server: id of the server concerned (from 1), or None.
    """

    code = "error"
    exit_code = 1

    def __init__(self, message: str, *, cure: str = "", server: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.cure = cure
        self.server = server

    def to_fields(self) -> dict[str, str | int | None]:
        """Return the object that commands print with ``--json``."""
        return {
            "error": self.code,
            "message": self.message,
            "cure": self.cure,
            "server": self.server,
        }

    def __str__(self) -> str:
        return f"{self.message}; {self.cure}" if self.cure else self.message


class ParameterError(MksearchError):
    """A parameter is outside its range: the caller's mistake; nothing was changed."""

    code = "invalid-parameter"
    exit_code = 2


class PrivacyExceeded(ParameterError):
    """What was asked for would show servers more than the profile allows; nothing was sent."""

    code = "privacy-exceeded"


class InputError(MksearchError):
    """A document, file or folder cannot be used; nothing was changed."""

    code = "bad-input"


class AnalyzerError(MksearchError):
    """An analyzer is unknown, or the installed libraries would cut words differently."""

    code = "analyzer"
    exit_code = 2


class QueryError(MksearchError):
    """A query cannot be asked as it stands (too long, k out of range)."""

    code = "bad-query"
    exit_code = 2


class ServerUnreachable(MksearchError):
    """A server did not answer: no connection, or none in time; nothing is known of it."""

    code = "unreachable"


class TlsRefused(ServerUnreachable):
    """No connection to who answers is safe, or it lets nobody in: nothing was sent.

    Its certificate is not one of the pinned key, is past its dates, or is for another host, it
    speaks no TLS 1.3, or it wants another client certificate.
    """

    code = "tls-refused"
    exit_code = 3


class OtherTlsKey(TlsRefused):
    """Who answers has another TLS key than the pinned: another server, or somebody in between."""


class ServerRefused(MksearchError):
    """A server answered that it will not: ``detail_code`` is its kind of error.

    Args:
        message: what the server said.
        detail_code: stable name of the server's error, such as "storage".
        cure: what the server suggests.
        server: its id.
    """

    code = "refused"

    def __init__(
        self, message: str, *, detail_code: str, cure: str = "", server: int | None = None
    ) -> None:
        super().__init__(message, cure=cure, server=server)
        self.detail_code = detail_code


class PolicyError(MksearchError):
    """A policy or attribute is not of the language, or a key may not have these attributes.

    Args:
        message: one line that names the cause and the place.
        position: character of the typed text where it was met, from 1, or None.
        cure: what to type instead.
    """

    code = "bad-policy"
    exit_code = 2

    def __init__(self, message: str, *, position: int | None = None, cure: str = "") -> None:
        super().__init__(message, cure=cure)
        self.position = position


class NotQualified(MksearchError):
    """Not allowed: the attributes of a key do not satisfy the policy; nothing was opened."""

    code = "not-qualified"
    exit_code = 4


class EpochPassed(NotQualified):
    """Not allowed: the keys are of an older epoch than the collection; a newer credential helps."""

    code = "old-epoch"


class CredentialRefused(MksearchError):
    """Not allowed: a credential is of another collection or user, has expired, or was revoked."""

    code = "credential-refused"
    exit_code = 4


class ProfileError(MksearchError):
    """A profile is missing, damaged, of another role, or its passphrase is wrong."""

    code = "profile"


class StorageError(MksearchError):
    """A server's store refuses: not authorised, not listed, not whole, or damaged."""

    code = "storage"


class EngineUnavailable(MksearchError):
    """An engine cannot be used on this machine: no library, no driver, no device that works."""

    code = "engine-unavailable"
    exit_code = 2


class EngineFailed(MksearchError):
    """An engine failed while it computed; nothing was answered, and the next call tries anew."""

    code = "engine-failed"


class VerificationError(MksearchError):
    """Something received was not proved right, so nothing of it was used."""

    code = "not-verified"
    exit_code = 3


class FormatError(VerificationError):
    """Bytes are not a canonical encoding of what they should be (damaged, truncated, forged)."""

    code = "bad-format"


class UnsupportedVersion(FormatError):
    """Bytes are of a format version that this release does not read."""

    code = "unsupported-version"


class ManifestRefused(VerificationError):
    """A manifest's signature, collection, chain or version is not the expected one."""

    code = "manifest-refused"


class ManifestStale(ManifestRefused):
    """A manifest is authentic but older than, or another than, one that was seen before."""

    code = "manifest-stale"


class ManifestExpired(ManifestRefused):
    """A manifest is authentic but past its expiry."""

    code = "manifest-expired"


class RenewalRefused(VerificationError):
    """A renewal is authentic but of another manifest, of an impossible time, or no later one."""

    code = "renewal-refused"


class RecordRefused(VerificationError):
    """A record or blob received from a server does not open."""

    code = "record-refused"


class PartialKeyRefused(VerificationError):
    """A server's part of an attribute key is not what was asked for; ``server`` sent it."""

    code = "partial-key-refused"


class AnswerRefused(VerificationError):
    """Answer shares failed the check rows and too few honest ones remain.

    Args:
        message: one line that names the cause.
        liars: ids of the servers proved to have answered wrongly.
        have: honest answers available.
        need: answers needed (threshold t + 1).
        cure: what to do.
    """

    code = "answer-refused"

    def __init__(
        self, message: str, *, liars: Sequence[int], have: int, need: int, cure: str = ""
    ) -> None:
        super().__init__(message, cure=cure, server=liars[0] if liars else None)
        self.liars = tuple(liars)
        self.have = have
        self.need = need


class NotEnoughAnswers(MksearchError):
    """Fewer servers answered than the threshold; ``have`` and ``need`` are counts of answers."""

    code = "not-enough-answers"

    def __init__(self, message: str, *, have: int, need: int, cure: str = "") -> None:
        super().__init__(message, cure=cure)
        self.have = have
        self.need = need
