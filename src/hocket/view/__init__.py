"""EXPLAIN: pictures, tables and text of schedules, pipelines, networks and traces, for notebooks and commands."""

from typing import TYPE_CHECKING

from hocket.lazy import lazy_names

if TYPE_CHECKING:
    from hocket.view.explain_text import print_explanation as print_explanation
    from hocket.view.hosts_text import print_hosts_explanation as print_hosts_explanation
    from hocket.view.networks.calibration_text import print_calibration as print_calibration
    from hocket.view.networks.calibration_text import print_expectation as print_expectation
    from hocket.view.networks.measured_picture import draw_measured as draw_measured
    from hocket.view.networks.mesh_text import PlacedMesh as PlacedMesh
    from hocket.view.networks.mesh_text import name_axes as name_axes
    from hocket.view.networks.mesh_text import print_mesh as print_mesh
    from hocket.view.networks.network_explanation import print_network_explanation as print_network_explanation
    from hocket.view.networks.network_picture import draw_network as draw_network
    from hocket.view.networks.optimum_text import print_optimum as print_optimum
    from hocket.view.networks.simulation_plots import draw_all as draw_all
    from hocket.view.networks.simulation_plots import require_matplotlib as require_matplotlib
    from hocket.view.networks.simulation_text import print_result as print_result
    from hocket.view.networks.simulation_text import print_sweep as print_sweep
    from hocket.view.networks.topology_text import facts_of as facts_of
    from hocket.view.networks.topology_text import matrix_of as matrix_of
    from hocket.view.networks.topology_text import print_topology as print_topology
    from hocket.view.pipelines.pipeline_bars import is_drawn as is_drawn
    from hocket.view.pipelines.pipeline_picture import draw_pipeline as draw_pipeline
    from hocket.view.pipelines.pipeline_text import print_pipeline as print_pipeline
    from hocket.view.pipelines.pipeline_text import print_pipeline_proof as print_pipeline_proof
    from hocket.view.proof_text import print_proof as print_proof
    from hocket.view.schedules.collective_picture import draw_collective as draw_collective
    from hocket.view.schedules.collective_text import print_collective as print_collective
    from hocket.view.schedules.schedule_picture import draw_schedule as draw_schedule
    from hocket.view.schedules.schedule_text import print_schedule as print_schedule
    from hocket.view.terminal import Terminal as Terminal
    from hocket.view.terminal import num_fitting as num_fitting
    from hocket.view.terminal import print_aside as print_aside
    from hocket.view.terminal import terminal_width as terminal_width
    from hocket.view.traces.trace_summary import summarise as summarise
    from hocket.view.traces.trace_tables import print_summary as print_summary
    from hocket.view.traces.trace_timeline import Timeline as Timeline
    from hocket.view.traces.trace_view import write_page as write_page
    from hocket.view.ways_text import print_ways as print_ways
    from hocket.view.words import name_bandwidth as name_bandwidth
    from hocket.view.words import name_bytes as name_bytes
    from hocket.view.words import name_case as name_case
    from hocket.view.words import name_count as name_count
    from hocket.view.words import name_counts as name_counts
    from hocket.view.words import name_layout as name_layout
    from hocket.view.words import name_range as name_range
    from hocket.view.words import name_seconds as name_seconds
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "explain_text": ["print_explanation"],
            "hosts_text": ["print_hosts_explanation"],
            "networks.calibration_text": ["print_calibration", "print_expectation"],
            "networks.measured_picture": ["draw_measured"],
            "networks.mesh_text": ["PlacedMesh", "name_axes", "print_mesh"],
            "networks.network_explanation": ["print_network_explanation"],
            "networks.network_picture": ["draw_network"],
            "networks.optimum_text": ["print_optimum"],
            "networks.simulation_plots": ["draw_all", "require_matplotlib"],
            "networks.simulation_text": ["print_result", "print_sweep"],
            "networks.topology_text": ["facts_of", "matrix_of", "print_topology"],
            "pipelines.pipeline_bars": ["is_drawn"],
            "pipelines.pipeline_picture": ["draw_pipeline"],
            "pipelines.pipeline_text": ["print_pipeline", "print_pipeline_proof"],
            "proof_text": ["print_proof"],
            "schedules.collective_picture": ["draw_collective"],
            "schedules.collective_text": ["print_collective"],
            "schedules.schedule_picture": ["draw_schedule"],
            "schedules.schedule_text": ["print_schedule"],
            "terminal": ["Terminal", "num_fitting", "print_aside", "terminal_width"],
            "traces.trace_summary": ["summarise"],
            "traces.trace_tables": ["print_summary"],
            "traces.trace_timeline": ["Timeline"],
            "traces.trace_view": ["write_page"],
            "ways_text": ["print_ways"],
            "words": [
                "name_bandwidth",
                "name_bytes",
                "name_case",
                "name_count",
                "name_counts",
                "name_layout",
                "name_range",
                "name_seconds",
            ],
        },
    )
