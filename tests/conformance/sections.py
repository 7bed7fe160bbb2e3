"""Every section of the conformance run, by name and in the order of the report."""

from tests.conformance import (
    dtypes,
    layouts,
    modules,
    operators,
    programs,
    python_programs,
    random_graphs,
    sizes,
    values_programs,
)
from tests.conformance.cases import Section

PARTS = (operators, dtypes, modules, layouts, programs, random_graphs, python_programs, values_programs, sizes)
SECTIONS: dict[str, Section] = {section.name: section for part in PARTS for section in part.sections()}
