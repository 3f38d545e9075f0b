"""The field's jobs by name."""

from tests.field.adapted import ADAPTED
from tests.field.entry import Entry
from tests.field.generative import GENERATIVE
from tests.field.language import LANGUAGE
from tests.field.structured import STRUCTURED
from tests.field.vision import VISION

CATALOG: dict[str, Entry] = {
    entry.name: entry for family in (VISION, LANGUAGE, GENERATIVE, STRUCTURED, ADAPTED) for entry in family.entries
}
