"""The classes of the characters of Unicode 14, frozen so that an analyzer's name fixes them.

Python releases differ in their version of Unicode: a character that one calls a letter is not yet
assigned in another, and a document cut by the one would not be found by the other.  The classes
are therefore kept here and never asked of the running interpreter.  What it is still asked for,
case folding and normalisation, Unicode guarantees never to change for an assigned character.

Source: the Unicode Character Database, version 14.0.0 (``UnicodeData.txt`` and, of
``DerivedCoreProperties.txt``, ``Default_Ignorable_Code_Point``).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from enum import StrEnum
from functools import cache
from typing import Final

__all__ = ["CharacterClass", "character_class"]


class CharacterClass(StrEnum):
    """What a character does in a text, in the notation of the table below."""

    #: Letters and numbers, general categories L and N: they make a token.
    WORD = "w"
    #: Combining marks, category M: they belong to the token that they follow.
    MARK = "m"
    #: Category Cf and default ignorable characters (joiners, bidi marks, soft hyphens, byte order
    #: marks, variation selectors): nobody sees them, so they are taken out of the text.
    #: The zero width space is not among them, it marks a word boundary (as in UAX #29).
    IGNORED = "x"
    #: Every other assigned character: punctuation, symbols, blanks, controls.
    SEPARATOR = "s"
    #: Not assigned in Unicode 14, and surrogates: separators too, but taken out before the text is
    #: normalised, because a later Unicode may decompose them.
    UNASSIGNED = "u"


@cache
def _runs() -> tuple[tuple[int, ...], tuple[CharacterClass, ...]]:
    starts, classes, start = [], [], 0
    for length, letter in re.findall(r"(\d+)([a-z])", _TABLE):
        starts.append(start)
        classes.append(CharacterClass(letter))
        start += int(length)
    return tuple(starts), tuple(classes)


def character_class(code_point: int) -> CharacterClass:
    """Say what a character does in a text.

    Args:
        code_point: 0..0x10FFFF, surrogates included.

    Returns:
        Its class, the same on every Python release.
    """
    starts, classes = _runs()
    return classes[bisect_right(starts, code_point) - 1]


#: Runs of characters of one class, from U+0000 to U+10FFFF: length, then class.
_TABLE: Final = (
    "48s10w7s26w6s26w47s1w2s1x4s2w1s1w3s2w1s3w1s23w1s31w1s458w4s12w14s5w7s1w1s1w17s79m1x32m5w1s2w"
    "2u4w1s1w4u2s1w1s3w1u1w1u20w1u83w1s139w1s7m166w1u38w2u1w6s41w2s2u3s1u45m1s1m1s2m1s2m1s1m8u27w"
    "4u4w2s11u6x10s11m1s1x3s43w21m10w4s2w1m99w1s1w7m1x1s6m2w2m1s4m15w2s1w14s1u1x1w1m30w27m2u89w"
    "11m1w14u43w9m2w4s1w2u1m2s22w4m1w9m1w3m1w5m2u15s1u25w3m2u1s1u11w5u24w1s6w1u2x6u8m42w24m1x33m"
    "54w3m1w18m1w7m10w2m2s10w1s16w3m1u8w2u2w2u22w1u7w1u1w3u4w2u1m1w7m2u2m2u3m1w8u1m4u2w1u3w2m2u"
    "12w2s6w2s1w1s1m2u3m1u6w4u2w2u22w1u7w1u2w1u2w1u2w2u1m1u5m4u2m2u3m3u1m7u4w1u1w7u10w2m3w1m1s10u"
    "3m1u9w1u3w1u22w1u7w1u2w1u5w2u1m1w8m1u3m1u3m2u1w15u2w2m2u10w2s7u1w6m1u3m1u8w2u2w2u22w1u7w1u2w"
    "1u5w2u1m1w7m2u2m2u3m7u3m4u2w1u3w2m2u10w1s7w10u1m1w1u6w3u3w1u4w3u2w1u1w1u2w3u2w3u3w3u12w4u5m"
    "3u3m1u4m2u1w6u1m14u13w8s5u5m8w1u3w1u23w1u16w2u1m1w7m1u3m1u4m7u2m1u3w2u1w2u2w2m2u10w7u1s7w1s"
    "1w3m1s8w1u3w1u23w1u10w1u5w2u1m1w7m1u3m1u4m7u2m6u2w1u2w2m2u10w1u2w13u4m9w1u3w1u41w2m1w7m1u3m"
    "1u4m1w1s4u3w1m10w2m2u19w1s6w1u3m1u18w3u24w1u9w1u1w2u7w3u1m4u6m1u1m1u8m6u10w2u2m1s12u48w1m2w"
    "7m4u1s7w8m1s10w2s37u2w1u1w1u5w1u24w1u1w1u10w1m2w9m1w2u5w1u1w1u6m2u10w2u4w32u1w23s2m6s20w1s1m"
    "1s1m1s1m4s2m8w1u36w4u20m1s2m5w11m1u36m1u8s1m6s1u13s37u43w20m11w6s6w4m4w3m1w3m2w7m3w4m13w12m"
    "1w1m10w4m2s38w1u1w5u1w2u43w1s99w2x232w1u4w2u7w1u1w1u4w2u41w1u4w2u33w1u4w2u7w1u1w1u4w2u15w1u"
    "57w1u4w2u67w2u3m9s20w3u16w10s6u86w2u6w2u1s620w2s17w1s26w2s3u75w3s11w7u18w4m9u19w3m2s9u18w2m"
    "12u13w1u3w1u2m12u52w2x30m3s1w4s1w1m2u10w6u10w6u11s5x10w6u89w7u5w2m34w1m1w5u70w10u31w1u12m4u"
    "12m4u1s3u2s40w2u5w11u44w4u26w6u11w3u34s23w5m2u2s53w10m1u29m2u1m10w6u10w6u7s1w6s2u31m49u5m47w"
    "17m8w3u10w17s9m11s1u3m30w13m56w14m8u4s36w20m3u5s10w3u49w2s9w7u43w2u3w8s8u3m1s21m4w1m6w1m2w3m"
    "1w5u192w64m278w2u6w2u38w2u6w2u8w1u1w1u1w1u1w1u31w2u53w1u7w1s1w3s3w1u7w3s4w2u6w1u3s13w3s2u3w"
    "1u7w2s1u12s4x26s5x49s5x1u10x2w2u6w5s11w5s1u13w3u33s15u33m15u2s1w4s1w2s10w1s1w3s5w6s1w1s1w1s"
    "1w1s4w1s11w2s4w5s5w4s1w1s58w2s4u663s25u11s21u60w78s22w630s30w992s2u32s1u105s229w6s4w3m2w5u4s"
    "1w2s38w1u1w5u1w2u56w7u1w1s14u1m23w9u7w1u7w1u7w1u7w1u7w1u7w1u7w1u7w1u32m47s1w46s34u26s1u89s"
    "12u214s26u12s4u5s3w25s9w6m1s5w2s5w3s1u86w2u2m2s3w1s90w1s4w5u43w1u51w1x42w1u2s4w10s32w36s12u"
    "16w31s1u10w30s8w1s15w32s10w39s15w320s6592w64s22157w3u55s9u46w2s269w3s28w20u47w4m1s10m1s31w2m"
    "80w2m6s8u23s9w2s103w2s64w5u2w1u1w1u5w24u16w1m3w1m4w1m23w5m4s1m3u6w4s6u52w4s8u2m50w18m8u2s10w"
    "6u18m6w3s1w1s2w1m38w8m2s23w13m11u1s29w3u4m47w14m13s1u11w4u2s5w1m25w1u41w14m9u3w1m8w2m2u10w2u"
    "4s23w3s1w3m50w1m1w3m2w2m5w2m1w1m1w24u3w2s11w5m2s3w2m10u6w2u6w2u6w9u7w1u7w1u43w1s14w2s4u115w"
    "8m1s2m2u10w6u11172w12u23w4u49w2052u6400s366w2u106w38u7w12u5w5u1w1m10w1s13w1u5w1u1w1u2w1u2w1u"
    "108w17s16u363w18s64w2u54w7u1s32u12w4s16x10s6u16m35s1u19s1u4s4u5w1u135w2u1x1u15s10w7s26w6s26w"
    "11s58w1x30w3u6w2u6w2u6w2u3w3u7s1u7s10u3x2s2u12w1u26w1u19w1u2w1u15w2u14w34u123w5u3s4u45w3u9s"
    "57w17s2w3s1u13s3u1s47u45s1m130u29w3u49w15u1m27w4u36w9u30w5u38w5m5u30w1u1s36w4u8w1s5w42u158w"
    "2u10w6u36w4u36w4u40w8u52w11u1s11w1u15w1u7w1u2w1u11w1u15w1u7w1u2w67u311w9u22w10u8w24u6w1u42w"
    "1u9w69u6w2u1w1u44w1u2w3u1w2u23w1u1s31w2s38w8u9w48u19w1u2w5u33w3u1s26w5u1s64u56w4u20w2u47w3m"
    "1u2m5u4m4w1u3w1u29w2u3m4u1m9w7u9s7u31w1s32w32u8w1s28w2m4u5w7s9u54w3u7s22w2u27w5u26w7u4s12u7w"
    "80u73w55u51w13u51w7u42w4m8u10w294u31w1u42w1u2m1s2u2w78u40w8u22w11m4w5s22u18w4m4s38u28w20u23w"
    "9u3m53w15m7s4u30w1m2w2m1w9u4m45w11m2s1x4s1m10u1x2u25w7u10w6u3m36w14m1u10w4s1w2m1w8u35w1m2s1w"
    "9u3m48w14m4w4s4m1s2m11w1s1w3s1u20w11u18w1u25w12m6s1m65u7w1u1w1u4w1u15w1u10w1s6u47w12m5u10w6u"
    "4m1u8w2u2w2u22w1u7w1u2w1u5w1u2m1w7m2u2m2u3m2u1w6u1m5u5w2m2u7m3u5m139u53w18m4w5s10w2s1u1s1m3w"
    "30u48w20m2w1s1w8u10w166u47w7m2u9m23s4w2m34u48w17m3s1w11u10w6u13s19u43w13m1w1s6u10w54u27w2u"
    "15m4u12w4s7w185u44w15m1s100u83w12u8w2u1w2u8w1u2w1u24w6m1u2m2u4m1w1m1w2m3s9u10w70u8w2u39w7m2u"
    "7m1w1s1w1m27u1w10m40w7m1w4m8s1m8u1w11m46w16m3s1w5s13u73w263u9w1u37w8m1u8m1w5s10u29w3u2s30w2u"
    "22m1u14m73u7w1u2w1u38w6m3u1m1u2m1u7m1w1m8u10w6u6w1u2w1u32w5m1u2m1u5m1w7u10w310u19w4m2s183u1w"
    "15u21w29s13u1s922w102u111w1u5s11u196w2636u97w2s13u1071w1u9x4039u583w8633u569w7u31w1u10w4u2s"
    "79w1u10w6u30w2u5m1s10u48w7m9s4w2s10u10w1u7w1u21w5u19w688u87w4s101u75w4u1m1w55m7u4m13w64u2w1s"
    "1w1m11u2m14u6136w8u1238w42u9w8935u4w1u7w1u2w1u291w45u3w17u4w8u396w2308u107w5u13w3u9w7u10w2u"
    "1s2m1s4x4700u46m2u23m9u116s60u246s10u39s2u60s5m3s6m8x8m2s7m30s4m61s21u66s3m1s154u20w12u87s9u"
    "25w135u85w1u71w1u2w2u1w2u2w2u4w1u12w1u1w1u7w1u65w1u4w2u8w1u7w1u28w1u4w1u5w1u1w3u7w1u340w2u"
    "25w1s25w1s31w1s25w1s31w1s25w1s31w1s25w1s31w1s25w1s8w2u50w512s55m4s50m8s1m14s1m7s15u5m1u15m"
    "1104u31w225u7m1u17m2u7m1u2m1u5m213u45w3u7m7w2u10w4u1w1s320u30w1m17u44w4m10w5u1s1248u7w1u4w1u"
    "2w1u15w1u197w2u9w7m41u68w7m1w4u10w4u2s785u59w1s3w1s4w76u45w1s15w194u4w1u27w1u2w1u1w2u1w1u10w"
    "1u4w1u1w1u1w6u1w4u1w1u1w1u1w1u3w1u2w1u1w2u1w1u1w1u1w1u1w1u1w1u2w1u1w2u4w1u7w1u4w1u4w1u1w1u"
    "10w1u17w5u3w1u5w1u17w52u2s270u44s4u100s12u15s2u15s1u15s1u37s10u13w161s56u29s13u44s4u9s7u2s"
    "14u6s154u984s5u16s3u13s3u116s12u89s7u12s4u1s15u12s4u56s8u10s6u40s8u30s2u2s78u340s12u14s2u5s"
    "3u5s3u7s9u29s3u11s5u6s10u10s6u8s8u7s9u147s1u55s37u10w1030u42720w32u4153w7u222w2u5762w14u"
    "7473w3103u542w1506u4939w715958u1x30u96x128u240x65040u65534s2u65534s2u"
)
