"""WHERE: networks, the paths through them, simulation, and lower bounds that no algorithm can beat."""

from typing import TYPE_CHECKING

from hocket.lazy import lazy_names

if TYPE_CHECKING:
    from hocket.network.affinity_matrix import LEGEND as LEGEND
    from hocket.network.affinity_matrix import Affinity as Affinity
    from hocket.network.affinity_matrix import affinity as affinity
    from hocket.network.bounds.network_bound import lower_bound as lower_bound
    from hocket.network.calibration.fitted_file import fitted_text as fitted_text
    from hocket.network.calibration.fitted_file import named_constant as named_constant
    from hocket.network.calibration.machine_fit import FittedConstant as FittedConstant
    from hocket.network.calibration.machine_fit import MachineFit as MachineFit
    from hocket.network.calibration.machine_fit import fastest_call as fastest_call
    from hocket.network.calibration.machine_fit import fit_machine as fit_machine
    from hocket.network.calibration.machine_fit import placed_as as placed_as
    from hocket.network.calibration.measured_calls import MeasuredCall as MeasuredCall
    from hocket.network.calibration.measured_calls import MeasuredTable as MeasuredTable
    from hocket.network.calibration.read_logs import read_log as read_log
    from hocket.network.calibration.read_logs import read_log_text as read_log_text
    from hocket.network.calibration.slow_causes import SlowCause as SlowCause
    from hocket.network.calibration.slow_causes import slow_causes as slow_causes
    from hocket.network.changes import changed_links as changed_links
    from hocket.network.files.host_list import expand_host_list as expand_host_list
    from hocket.network.files.read import load as load
    from hocket.network.kinds.by_name import KINDS as KINDS
    from hocket.network.kinds.by_name import parse as parse
    from hocket.network.kinds.switch_tree import SwitchTree as SwitchTree
    from hocket.network.kinds.switch_tree import switch_tree as switch_tree
    from hocket.network.links import name_bandwidth as name_bandwidth
    from hocket.network.links import name_seconds as name_seconds
    from hocket.network.machines.call_traffic import PlacedRanks as PlacedRanks
    from hocket.network.machines.library import LIBRARY_COLLECTIVES as LIBRARY_COLLECTIVES
    from hocket.network.machines.library import LibraryTime as LibraryTime
    from hocket.network.machines.library import library_algorithms as library_algorithms
    from hocket.network.machines.library import library_check as library_check
    from hocket.network.machines.library import library_times as library_times
    from hocket.network.machines.library import placed_on as placed_on
    from hocket.network.machines.machine import Machine as Machine
    from hocket.network.machines.machine_file import MACHINES as MACHINES
    from hocket.network.machines.machine_file import load_machine as load_machine
    from hocket.network.machines.machine_file import machine_files as machine_files
    from hocket.network.routing import DimensionOrder as DimensionOrder
    from hocket.network.routing import ShortestPath as ShortestPath
    from hocket.network.simulation.link_loads import LinkLoads as LinkLoads
    from hocket.network.simulation.pipelined import all_reduce_in_switches as all_reduce_in_switches
    from hocket.network.simulation.pipelined import all_reduce_in_tree as all_reduce_in_tree
    from hocket.network.simulation.simulate import SimulationResult as SimulationResult
    from hocket.network.simulation.simulate import simulate as simulate
    from hocket.network.simulation.simulation_options import SimulationOptions as SimulationOptions
    from hocket.network.simulation.traffic import traffic_of as traffic_of
    from hocket.network.synthesis.forests import Forest as Forest
    from hocket.network.synthesis.forests import Synthesised as Synthesised
    from hocket.network.synthesis.forests import synthesise_schedule as synthesise_schedule
    from hocket.network.synthesis.link_matching import match_links as match_links
    from hocket.network.synthesis.round_tuples import Lanes as Lanes
    from hocket.network.synthesis.round_tuples import lanes_of as lanes_of
    from hocket.network.synthesis.round_tuples import rounds_of as rounds_of
    from hocket.network.synthesis.round_tuples import search_tuple as search_tuple
    from hocket.network.synthesis.throughput import Optimum as Optimum
    from hocket.network.synthesis.throughput import find_optimum as find_optimum
    from hocket.network.topology import Topology as Topology
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "affinity_matrix": ["LEGEND", "Affinity", "affinity"],
            "bounds.network_bound": ["lower_bound"],
            "calibration.fitted_file": ["fitted_text", "named_constant"],
            "calibration.machine_fit": ["FittedConstant", "MachineFit", "fastest_call", "fit_machine", "placed_as"],
            "calibration.measured_calls": ["MeasuredCall", "MeasuredTable"],
            "calibration.read_logs": ["read_log", "read_log_text"],
            "calibration.slow_causes": ["SlowCause", "slow_causes"],
            "changes": ["changed_links"],
            "files.host_list": ["expand_host_list"],
            "files.read": ["load"],
            "kinds.by_name": ["KINDS", "parse"],
            "kinds.switch_tree": ["SwitchTree", "switch_tree"],
            "links": ["name_bandwidth", "name_seconds"],
            "machines.call_traffic": ["PlacedRanks"],
            "machines.library": [
                "LIBRARY_COLLECTIVES",
                "LibraryTime",
                "library_algorithms",
                "library_check",
                "library_times",
                "placed_on",
            ],
            "machines.machine": ["Machine"],
            "machines.machine_file": ["MACHINES", "load_machine", "machine_files"],
            "routing": ["DimensionOrder", "ShortestPath"],
            "simulation.link_loads": ["LinkLoads"],
            "simulation.simulation_options": ["SimulationOptions"],
            "simulation.pipelined": ["all_reduce_in_switches", "all_reduce_in_tree"],
            "simulation.simulate": ["SimulationResult", "simulate"],
            "simulation.traffic": ["traffic_of"],
            "synthesis.forests": ["Forest", "Synthesised", "synthesise_schedule"],
            "synthesis.link_matching": ["match_links"],
            "synthesis.round_tuples": ["Lanes", "lanes_of", "rounds_of", "search_tuple"],
            "synthesis.throughput": ["Optimum", "find_optimum"],
            "topology": ["Topology"],
        },
    )
