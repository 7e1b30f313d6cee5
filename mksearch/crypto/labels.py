"""Every domain-separation label of the protocol (docs/protocol.md, section 2).

A label carries the protocol's version, is used in one place only, and ends before a zero byte.
"""

from __future__ import annotations

from typing import Final

_PREFIX: Final = b"mksearch/1/"

ANSWER: Final = _PREFIX + b"answer"
MANIFEST: Final = _PREFIX + b"manifest"
DRAFT: Final = _PREFIX + b"draft"
PASSPHRASE: Final = _PREFIX + b"passphrase"
RECORD: Final = _PREFIX + b"record"
STREAM: Final = _PREFIX + b"stream"
ATTRIBUTE: Final = _PREFIX + b"attribute"
AUTHORITY: Final = _PREFIX + b"authority"

BUNDLE: Final = _PREFIX + b"bundle/"
SEGMENT_MASK: Final = _PREFIX + b"segment/mask"
SEGMENT_CHECK: Final = _PREFIX + b"segment/check"
SEGMENT_RECORD: Final = _PREFIX + b"segment/record"
SEGMENT_TAG: Final = _PREFIX + b"segment/tag"
SEGMENT_SLOTS: Final = _PREFIX + b"segment/slots"
COLUMNS_DEDICATED: Final = _PREFIX + b"columns/dedicated"
COLUMNS_SHARED: Final = _PREFIX + b"columns/shared"
SECTION: Final = _PREFIX + b"section/"
LOOKUP_ID: Final = _PREFIX + b"lookup-id"
WRAP: Final = _PREFIX + b"wrap"
STREAM_KEY: Final = _PREFIX + b"stream/"
ACCESS: Final = _PREFIX + b"access"
IDENTITY: Final = _PREFIX + b"identity/"
HPKE: Final = _PREFIX + b"hpke/"
CREDENTIAL: Final = _PREFIX + b"credential"
BUNDLE_SEAL: Final = _PREFIX + b"bundle-seal"
BUNDLE_MEMBERS: Final = _PREFIX + b"bundle-members"
BACKUP: Final = _PREFIX + b"backup"
SERVER_SEAL: Final = _PREFIX + b"server-seal"
SHARE_STORE: Final = _PREFIX + b"share-store"
INSTALL_SHARE: Final = _PREFIX + b"install-share"
ENROL: Final = _PREFIX + b"enrol"
PARTIAL_KEY: Final = _PREFIX + b"partial-key"
QUERY: Final = _PREFIX + b"query"
REFRESH_SHARE: Final = _PREFIX + b"refresh-share"
REPAIR_HELP: Final = _PREFIX + b"repair-help"
REPAIR_PART: Final = _PREFIX + b"repair-part"
REPAIR_SHARE: Final = _PREFIX + b"repair-share"
TOKEN_ATTRIBUTES: Final = _PREFIX + b"token-attributes"
RENEWAL: Final = _PREFIX + b"renewal"
