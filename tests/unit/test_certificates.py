"""TLS certificates: what is made, and what is read of those that others made."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mksearch.crypto.certificate import (
    Certificate,
    key_fingerprint,
    make_tls_key,
    require_hosts,
    self_signed_certificate,
    signing_request,
)
from mksearch.crypto.randomness import SeededRandom, SystemRandom
from mksearch.errors import FormatError, MksearchError, ParameterError
from tests.support.certificates import Authority

NOW_S = 1_800_000_000
RANDOM = SystemRandom()
KEY = make_tls_key(RANDOM)


def _made(*hosts: str) -> Certificate:
    return Certificate.of_pem(self_signed_certificate(KEY, hosts, RANDOM, NOW_S))


def test_a_key_is_drawn_from_the_given_randomness() -> None:
    first, again = (make_tls_key(SeededRandom(bytes(32))) for _ in range(2))

    assert first == again
    assert first != make_tls_key(SeededRandom(bytes(31) + b"1"))


def test_a_certificate_says_for_which_key_hosts_and_days_it_is() -> None:
    found = _made("Search.Example.ORG", "192.0.2.1", "2001:DB8::0:1", "192.0.2.1")

    assert found.fingerprint == key_fingerprint(KEY)
    assert found.hosts == ("search.example.org", "192.0.2.1", "2001:db8::1")
    assert found.begins_s <= NOW_S - 120
    assert found.ends_s - found.begins_s == 397 * 86_400
    assert found.is_self_signed
    assert Certificate.of_pem(found.pem) == found


def test_every_certificate_of_a_key_has_its_fingerprint() -> None:
    authority = Authority.new()
    request = signing_request(KEY, ["192.0.2.1"])
    signed = Certificate.of_pem(authority.answer(request))

    assert signed.fingerprint == _made("192.0.2.1").fingerprint
    assert not signed.is_self_signed
    assert Certificate.of_pem(authority.certificate).fingerprint != signed.fingerprint


@pytest.mark.parametrize(
    ("hosts", "host", "is_for"),
    [
        (["a.example.org"], "a.example.org", True),
        (["a.example.org"], "A.EXAMPLE.org.", True),
        (["a.example.org"], "b.a.example.org", False),
        (["a.example.org"], "example.org", False),
        (["192.0.2.1"], "192.0.2.1", True),
        (["192.0.2.1"], "192.0.2.10", False),
        (["2001:db8::1"], "2001:0db8:0::1", True),
        (["localhost"], "127.0.0.1", False),
    ],
)
def test_a_certificate_is_for_its_hosts_alone(hosts: list[str], host: str, is_for: bool) -> None:
    assert _made(*hosts).is_for(host) == is_for


def test_a_star_stands_for_one_label_of_a_name() -> None:
    found = Certificate(bytes(32), 0, 1, ("*.example.org", "*.0.2.1"), True, b"")

    assert found.is_for("a.example.org")
    assert not found.is_for("a.b.example.org")
    assert not found.is_for("example.org")
    assert not found.is_for("192.0.2.1")


@pytest.mark.parametrize("hosts", [[], [""], ["a b"], ["a..b"], ["a/b"], ["é.example"], ["*.a"]])
def test_hosts_that_no_certificate_can_have_are_refused(hosts: list[str]) -> None:
    for make in (
        lambda: require_hosts(hosts),
        lambda: signing_request(KEY, hosts),
        lambda: self_signed_certificate(KEY, hosts, RANDOM, NOW_S),
    ):
        with pytest.raises(ParameterError):
            make()


@given(st.binary(max_size=400))
def test_bytes_that_are_no_certificate_are_refused(data: bytes) -> None:
    for read in (Certificate.of_der, Certificate.of_pem):
        with pytest.raises(FormatError):
            read(data)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_certificate_that_was_changed_is_read_or_refused(place: int, change: int) -> None:
    data = bytearray(_made("a.example.org").pem)
    data[place % len(data)] ^= change
    try:
        Certificate.of_pem(bytes(data))
    except MksearchError as error:
        assert isinstance(error, FormatError)  # noqa: PT017


def test_what_is_no_key_is_refused_without_being_shown() -> None:
    for data in (b"", b"secret", KEY[:-40], KEY.replace(b"PRIVATE", b"PUBLIC")):
        with pytest.raises(FormatError) as caught:
            key_fingerprint(data)
        assert "secret" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__
