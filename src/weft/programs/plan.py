"""Print how a program is computed: its regions in machine code with lanes and memory, and PyTorch's operators."""

from __future__ import annotations

from dataclasses import dataclass

from weft.plan.form.plan import Plan
from weft.plan.library_plan import LibraryPlan
from weft.plan.plan_text import plan_text
from weft.runtime.measure import machine_model
from weft.target import host_target


@dataclass(frozen=True, slots=True)
class ProgramPlan:
    """The plans of a program's forward: `regions` run in machine code, `library` says what runs in which order."""

    regions: tuple[Plan, ...]
    library: LibraryPlan

    def __str__(self) -> str:
        model = machine_model(host_target())
        parts = [f"region {number}\n{plan_text(plan, model)}" for number, plan in enumerate(self.regions)]
        calls = [step for step in self.library.steps if step.value.op in ("library", "update")]
        if calls or not parts:
            parts.append(f"library plan, one call after another\n{self.library}")
        return "\n\n".join(parts)
