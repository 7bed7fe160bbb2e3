"""Every section of the conformance run, by name and in the order of the report."""

from tests.conformance import modules, operators, programs
from tests.conformance.cases import Section

SECTIONS: dict[str, Section] = {
    section.name: section for section in (*operators.sections(), *modules.sections(), *programs.sections())
}
