"""Languages by the names that files of the Universal Declaration of Human Rights have: ISO 639-3, then a script."""

from __future__ import annotations

import re

_CODE = re.compile(r"([a-z]{3})(_[A-Za-z0-9]+)?")
_LANGUAGES = {
    "afr": "Afrikaans", "als": "Albanian", "amh": "Amharic", "arb": "Arabic", "azj": "Azerbaijani",
    "bel": "Belarusian", "ben": "Bengali", "bos": "Bosnian", "bre": "Breton", "bul": "Bulgarian",
    "cat": "Catalan", "ces": "Czech", "ckb": "Kurdish", "cmn": "Chinese", "cym": "Welsh", "dan": "Danish",
    "deu": "German", "ell": "Greek", "eng": "English", "epo": "Esperanto", "est": "Estonian", "eus": "Basque",
    "fao": "Faroese", "fin": "Finnish", "fra": "French", "gle": "Irish", "glg": "Galician", "guj": "Gujarati",
    "hat": "Haitian Creole", "hau": "Hausa", "heb": "Hebrew", "hin": "Hindi", "hrv": "Croatian",
    "hun": "Hungarian", "hye": "Armenian", "ibo": "Igbo", "ind": "Indonesian", "isl": "Icelandic",
    "ita": "Italian", "jav": "Javanese", "jpn": "Japanese", "kan": "Kannada", "kat": "Georgian",
    "kaz": "Kazakh", "khk": "Mongolian", "khm": "Khmer", "kin": "Kinyarwanda", "kir": "Kyrgyz", "kor": "Korean",
    "lao": "Lao", "lat": "Latin", "lav": "Latvian", "lin": "Lingala", "lit": "Lithuanian",
    "ltz": "Luxembourgish", "mal": "Malayalam", "mar": "Marathi", "mkd": "Macedonian", "mlt": "Maltese",
    "mly": "Malay", "mri": "Maori", "mya": "Burmese", "nep": "Nepali", "nld": "Dutch",
    "nno": "Norwegian Nynorsk", "nob": "Norwegian", "pan": "Punjabi", "pes": "Persian", "plt": "Malagasy",
    "pol": "Polish", "por": "Portuguese", "ron": "Romanian", "rus": "Russian", "san": "Sanskrit",
    "slk": "Slovak", "slv": "Slovenian", "sna": "Shona", "som": "Somali", "spa": "Spanish", "srp": "Serbian",
    "sun": "Sundanese", "swe": "Swedish", "swh": "Swahili", "tam": "Tamil", "tat": "Tatar", "tgk": "Tajik",
    "tgl": "Tagalog", "tha": "Thai", "tir": "Tigrinya", "tuk": "Turkmen", "tur": "Turkish", "uig": "Uyghur",
    "ukr": "Ukrainian", "urd": "Urdu", "uzn": "Uzbek", "vie": "Vietnamese", "xho": "Xhosa", "ydd": "Yiddish",
    "yor": "Yoruba", "zul": "Zulu",
}  # fmt: skip


def language_of(stem: str) -> str | None:
    """English name of a file's language; the code itself where the table lacks it; None where the name is no code."""
    found = _CODE.fullmatch(stem)
    return None if found is None else _LANGUAGES.get(found[1], stem)
