"""WHAT: what a collective must do, the table that does it, and the proof that it does. NumPy only; nothing compiled."""

from typing import TYPE_CHECKING

from hocket.lazy import lazy_names

if TYPE_CHECKING:
    from hocket.schedule.builder import Builder as Builder
    from hocket.schedule.collective import COLLECTIVES as COLLECTIVES
    from hocket.schedule.collective import Collective as Collective
    from hocket.schedule.collective import find_collective as find_collective
    from hocket.schedule.collective import find_collective_name as find_collective_name
    from hocket.schedule.collective import in_place_offset as in_place_offset
    from hocket.schedule.collective import name_call as name_call
    from hocket.schedule.collective import plain_spelling as plain_spelling
    from hocket.schedule.dtypes import DTYPE_TABLE as DTYPE_TABLE
    from hocket.schedule.dtypes import DTYPES as DTYPES
    from hocket.schedule.dtypes import EXTENSION_DTYPES as EXTENSION_DTYPES
    from hocket.schedule.dtypes import ITEM_BYTES as ITEM_BYTES
    from hocket.schedule.dtypes import numpy_dtype as numpy_dtype
    from hocket.schedule.interpreter import run_plans as run_plans
    from hocket.schedule.ir import COLUMNS as COLUMNS
    from hocket.schedule.ir import Buffer as Buffer
    from hocket.schedule.ir import Repeat as Repeat
    from hocket.schedule.ir import Schedule as Schedule
    from hocket.schedule.ir import Step as Step
    from hocket.schedule.lowering.lower import lower as lower
    from hocket.schedule.lowering.lower import lower_all as lower_all
    from hocket.schedule.lowering.plan import Plan as Plan
    from hocket.schedule.order import LABELS as LABELS
    from hocket.schedule.places import Places as Places
    from hocket.schedule.proof.races import check_plans as check_plans
    from hocket.schedule.proof.result import Symbolic as Symbolic
    from hocket.schedule.proof.verify import LAWS as LAWS
    from hocket.schedule.proof.verify import Certificate as Certificate
    from hocket.schedule.proof.verify import Declared as Declared
    from hocket.schedule.proof.verify import verify as verify
    from hocket.schedule.proof.verify import verify_together as verify_together
    from hocket.schedule.reduction import REDUCTIONS as REDUCTIONS
    from hocket.schedule.reduction import Array as Array
    from hocket.schedule.reduction import Reduction as Reduction
    from hocket.schedule.reduction import as_reduction as as_reduction
    from hocket.schedule.reduction import check_reduction as check_reduction
    from hocket.schedule.reduction import check_result as check_result
    from hocket.schedule.reduction import fold as fold
    from hocket.schedule.reduction import fold_memory as fold_memory
    from hocket.schedule.reduction import name_of as name_of
    from hocket.schedule.reduction import premul_sum as premul_sum
    from hocket.schedule.reduction import user_op as user_op
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "builder": ["Builder"],
            "collective": [
                "COLLECTIVES",
                "Collective",
                "find_collective",
                "find_collective_name",
                "in_place_offset",
                "name_call",
                "plain_spelling",
            ],
            "dtypes": ["DTYPES", "DTYPE_TABLE", "EXTENSION_DTYPES", "ITEM_BYTES", "numpy_dtype"],
            "interpreter": ["run_plans"],
            "ir": ["Buffer", "COLUMNS", "Repeat", "Schedule", "Step"],
            "lowering.lower": ["lower", "lower_all"],
            "lowering.plan": ["Plan"],
            "order": ["LABELS"],
            "places": ["Places"],
            "proof.races": ["check_plans"],
            "proof.result": ["Symbolic"],
            "proof.verify": ["Certificate", "Declared", "LAWS", "verify", "verify_together"],
            "reduction": [
                "Array",
                "REDUCTIONS",
                "Reduction",
                "as_reduction",
                "check_reduction",
                "check_result",
                "fold",
                "fold_memory",
                "name_of",
                "premul_sum",
                "user_op",
            ],
        },
    )
