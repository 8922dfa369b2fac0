"""RUN: how ranks start, meet and end, and the communicator that they share."""

from typing import TYPE_CHECKING

from hocket.lazy import lazy_names

if TYPE_CHECKING:
    from hocket.runtime.arena_size import arena_bytes as arena_bytes
    from hocket.runtime.cache import cache_folder as cache_folder
    from hocket.runtime.choice.select import Policy as Policy
    from hocket.runtime.choice.select import choose as choose
    from hocket.runtime.choice.tuner_file import Rule as Rule
    from hocket.runtime.communicator.arguments import check_unmasked as check_unmasked
    from hocket.runtime.communicator.call_settings import check_algorithm as check_algorithm
    from hocket.runtime.communicator.call_settings import check_order as check_order
    from hocket.runtime.communicator.call_settings import check_timeout as check_timeout
    from hocket.runtime.communicator.cartesian import Cartesian as Cartesian
    from hocket.runtime.communicator.communicator import Communicator as Communicator
    from hocket.runtime.communicator.communicator import init as init
    from hocket.runtime.communicator.communicator import init_in as init_in
    from hocket.runtime.communicator.context import Context as Context
    from hocket.runtime.communicator.mesh import Mesh as Mesh
    from hocket.runtime.communicator.point_to_point import ANY_SOURCE as ANY_SOURCE
    from hocket.runtime.communicator.point_to_point import ANY_TAG as ANY_TAG
    from hocket.runtime.communicator.point_to_point import Recv as Recv
    from hocket.runtime.communicator.point_to_point import Send as Send
    from hocket.runtime.communicator.refusals import name_instead as name_instead
    from hocket.runtime.communicator.refusals import refusal_of as refusal_of
    from hocket.runtime.communicator.repeated import GroupCalls as GroupCalls
    from hocket.runtime.communicator.repeated import cached_group_method as cached_group_method
    from hocket.runtime.communicator.repeated import note_written as note_written
    from hocket.runtime.communicator.repeated import read_options as read_options
    from hocket.runtime.failures import exception_of as exception_of
    from hocket.runtime.launch.launcher import run_ranks as run_ranks
    from hocket.runtime.launch.ray_actors import run_on_ray as run_on_ray
    from hocket.runtime.memory import empty as empty
    from hocket.runtime.memory import record_stream as record_stream
    from hocket.runtime.ranks.environment import MAX_ADDRESS_BYTES as MAX_ADDRESS_BYTES
    from hocket.runtime.ranks.environment import discover as discover
    from hocket.runtime.ranks.environment import may_attach as may_attach
    from hocket.runtime.ranks.environment import new_address as new_address
    from hocket.runtime.ranks.environment import paced_link as paced_link
    from hocket.runtime.ranks.failure_reports import reason_of as reason_of
    from hocket.runtime.ranks.process_end import at_process_end as at_process_end
    from hocket.runtime.ranks.program_frames import debugging as debugging
    from hocket.runtime.ranks.program_frames import without_own_frames as without_own_frames
    from hocket.runtime.ranks.rank_names import name_ranks as name_ranks
    from hocket.runtime.rendezvous.star import identity as identity
    from hocket.runtime.streams.stream import FOREVER_SECONDS as FOREVER_SECONDS
    from hocket.runtime.streams.stream import Event as Event
    from hocket.runtime.streams.stream import Stream as Stream
    from hocket.runtime.streams.stream import current_stream as current_stream
    from hocket.runtime.streams.stream import raise_failure as raise_failure
    from hocket.runtime.streams.stream import stream as stream
    from hocket.runtime.streams.work import Work as Work
    from hocket.runtime.traces.trace import span as span
    from hocket.runtime.traces.trace import trace as trace
    from hocket.runtime.traces.trace import watch_traces as watch_traces
    from hocket.runtime.tuning.fit import Costs as Costs
    from hocket.runtime.tuning.fit import Traits as Traits
    from hocket.runtime.tuning.machine_costs import MachineCosts as MachineCosts
    from hocket.runtime.tuning.tuner import Entry as Entry
    from hocket.runtime.tuning.tuner import Measured as Measured
    from hocket.runtime.tuning.tuner import Sample as Sample
    from hocket.runtime.tuning.tuner import TuningResult as TuningResult
    from hocket.runtime.tuning.tuner import sample_of as sample_of
    from hocket.runtime.vocabulary import DTYPES as DTYPES
    from hocket.runtime.vocabulary import OPS as OPS
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "arena_size": ["arena_bytes"],
            "cache": ["cache_folder"],
            "choice.select": ["Policy", "choose"],
            "choice.tuner_file": ["Rule"],
            "communicator.arguments": ["check_unmasked"],
            "communicator.call_settings": ["check_algorithm", "check_order", "check_timeout"],
            "communicator.cartesian": ["Cartesian"],
            "communicator.communicator": ["Communicator", "init", "init_in"],
            "communicator.context": ["Context"],
            "communicator.mesh": ["Mesh"],
            "communicator.point_to_point": ["ANY_SOURCE", "ANY_TAG", "Recv", "Send"],
            "communicator.refusals": ["name_instead", "refusal_of"],
            "communicator.repeated": ["GroupCalls", "cached_group_method", "note_written", "read_options"],
            "failures": ["exception_of"],
            "launch.launcher": ["run_ranks"],
            "launch.ray_actors": ["run_on_ray"],
            "memory": ["empty", "record_stream"],
            "ranks.environment": ["MAX_ADDRESS_BYTES", "discover", "may_attach", "new_address", "paced_link"],
            "ranks.failure_reports": ["reason_of"],
            "ranks.process_end": ["at_process_end"],
            "ranks.program_frames": ["debugging", "without_own_frames"],
            "ranks.rank_names": ["name_ranks"],
            "rendezvous.star": ["identity"],
            "streams.stream": ["Event", "FOREVER_SECONDS", "Stream", "current_stream", "raise_failure", "stream"],
            "streams.work": ["Work"],
            "traces.trace": ["span", "trace", "watch_traces"],
            "tuning.fit": ["Costs", "Traits"],
            "tuning.machine_costs": ["MachineCosts"],
            "tuning.tuner": ["Entry", "Measured", "TuningResult", "Sample", "sample_of"],
            "vocabulary": ["DTYPES", "OPS"],
        },
    )
