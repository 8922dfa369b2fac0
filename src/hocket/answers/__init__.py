"""ANSWERS: what hocket.verify, simulate, explain, calibrate and others return, and commands print."""

from typing import TYPE_CHECKING

from hocket.lazy import lazy_names

if TYPE_CHECKING:
    from hocket.answers.answer import Answer as Answer
    from hocket.answers.explanations import Candidate as Candidate
    from hocket.answers.explanations import Explanation as Explanation
    from hocket.answers.explanations import NetworkExplanation as NetworkExplanation
    from hocket.answers.explanations import SizeRange as SizeRange
    from hocket.answers.explanations import explain as explain
    from hocket.answers.host_crossings import Crossing as Crossing
    from hocket.answers.host_crossings import HostsExplanation as HostsExplanation
    from hocket.answers.limits import MOST_BYTES as MOST_BYTES
    from hocket.answers.limits import MOST_COUNT as MOST_COUNT
    from hocket.answers.limits import MOST_RANKS as MOST_RANKS
    from hocket.answers.limits import check_memory as check_memory
    from hocket.answers.limits import check_ranks as check_ranks
    from hocket.answers.machines.calibrations import Calibration as Calibration
    from hocket.answers.machines.calibrations import FittedCall as FittedCall
    from hocket.answers.machines.calibrations import calibrate as calibrate
    from hocket.answers.machines.calibrations import check_no_base as check_no_base
    from hocket.answers.machines.expectations import Expectation as Expectation
    from hocket.answers.machines.expectations import ExpectedCall as ExpectedCall
    from hocket.answers.machines.expectations import ExpectedTable as ExpectedTable
    from hocket.answers.machines.expectations import SizeVerdict as SizeVerdict
    from hocket.answers.machines.expectations import expect as expect
    from hocket.answers.machines.machine_case import MachineCase as MachineCase
    from hocket.answers.machines.machine_choices import check_no_topology as check_no_topology
    from hocket.answers.machines.machine_choices import machine_cases as machine_cases
    from hocket.answers.network_options import PLACEHOLDER as PLACEHOLDER
    from hocket.answers.networks import LinkClass as LinkClass
    from hocket.answers.networks import Network as Network
    from hocket.answers.networks import topology as topology
    from hocket.answers.predictions import Prediction as Prediction
    from hocket.answers.predictions import fastest_of as fastest_of
    from hocket.answers.predictions import simulate as simulate
    from hocket.answers.proofs import Breach as Breach
    from hocket.answers.proofs import Proof as Proof
    from hocket.answers.proofs import ProvedAlgorithm as ProvedAlgorithm
    from hocket.answers.proofs import verify as verify
    from hocket.answers.quantities import parse_size as parse_size
    from hocket.answers.quantities import ranks_of_layout as ranks_of_layout
    from hocket.answers.quantities import read_hosts as read_hosts
    from hocket.answers.quantities import read_rank_counts as read_rank_counts
    from hocket.answers.shown import ShownSchedule as ShownSchedule
    from hocket.answers.shown import show as show
    from hocket.answers.shown_collective import HeldBlock as HeldBlock
    from hocket.answers.shown_collective import ShownCollective as ShownCollective
    from hocket.answers.shown_pipeline import ShownPipeline as ShownPipeline
    from hocket.answers.shown_pipeline import pipeline as pipeline
    from hocket.answers.simulation_case import DEFAULT_BYTES as DEFAULT_BYTES
    from hocket.answers.simulation_case import SimulationCase as SimulationCase
    from hocket.answers.simulation_case import cases_of as cases_of
    from hocket.answers.synthesis.optima import BestBandwidth as BestBandwidth
    from hocket.answers.synthesis.optima import Synthesis as Synthesis
    from hocket.answers.synthesis.optima import optimum as optimum
    from hocket.answers.synthesis.optima import synthesise as synthesise
    from hocket.answers.synthesis.step_schedules import StepSchedule as StepSchedule
    from hocket.answers.synthesis.step_schedules import stepwise as stepwise
    from hocket.answers.ways import Travel as Travel
    from hocket.answers.ways import Ways as Ways
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "answer": ["Answer"],
            "explanations": ["Candidate", "Explanation", "NetworkExplanation", "SizeRange", "explain"],
            "host_crossings": ["Crossing", "HostsExplanation"],
            "limits": ["MOST_BYTES", "MOST_COUNT", "MOST_RANKS", "check_memory", "check_ranks"],
            "machines.calibrations": ["Calibration", "FittedCall", "calibrate", "check_no_base"],
            "machines.expectations": ["Expectation", "ExpectedCall", "ExpectedTable", "SizeVerdict", "expect"],
            "machines.machine_case": ["MachineCase"],
            "machines.machine_choices": ["check_no_topology", "machine_cases"],
            "network_options": ["PLACEHOLDER"],
            "networks": ["LinkClass", "Network", "topology"],
            "predictions": ["Prediction", "fastest_of", "simulate"],
            "proofs": ["Breach", "Proof", "ProvedAlgorithm", "verify"],
            "quantities": ["parse_size", "ranks_of_layout", "read_hosts", "read_rank_counts"],
            "shown": ["ShownSchedule", "show"],
            "shown_collective": ["HeldBlock", "ShownCollective"],
            "shown_pipeline": ["ShownPipeline", "pipeline"],
            "simulation_case": ["DEFAULT_BYTES", "SimulationCase", "cases_of"],
            "synthesis.optima": ["BestBandwidth", "Synthesis", "optimum", "synthesise"],
            "synthesis.step_schedules": ["StepSchedule", "stepwise"],
            "ways": ["Travel", "Ways"],
        },
    )
