"""Runs a peer on cases, in another process: `python peer_runs.py PEER FOLDER`, cases in, seconds out, as JSON.

A case that the peer cannot express is null. Settings that a case does not have are the peer's defaults. Only this file
calls the peers' functions.
"""

import importlib
import json
import logging
import math
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Case = Mapping[str, Any]


def calculon(folder: Path) -> Callable[[Case], float | None]:
    """Calculon: A100 of 80 GB and H100 as its systems have them; ungated layers, as many keys as queries."""
    llm = importlib.import_module("calculon.llm.llm").Llm
    system = importlib.import_module("calculon.system").System
    read = importlib.import_module("calculon.io").read_json_file
    log = logging.getLogger("peer")

    def seconds(case: Case) -> float | None:
        if case["gated"] or case["kv_heads"] != case["heads"] or case["zero"] > 1 or case["cp"] > 1:
            return None
        name = {"A100": "a100_80g", "H100": "h100_80g_nvl8"}.get(case["device"])
        if name is None:
            return None
        net = 0 if case["devices"] <= case["node"] else 1
        application = llm.Application(
            {
                "hidden": case["width"],
                "feedforward": case["ffn"],
                "seq_size": case["sequence"],
                "attn_heads": case["heads"],
                "attn_size": case["head_size"],
                "num_blocks": case["layers"],
            }
        )
        sharded = case["sequence_parallel"] and case["tp"] > 1
        execution = llm.Execution.from_json(
            {
                "num_procs": case["devices"],
                "tensor_par": case["tp"],
                "pipeline_par": case["pp"],
                "data_par": case["dp"],
                "tensor_par_net": 0,
                "pipeline_par_net": net,
                "data_par_net": net,
                "batch_size": case["batch"],
                "microbatch_size": case["microbatch"],
                "datatype": "float16",
                "fused_activation": False,
                "attention_type": "multihead",
                "activation_recompute": {"layers": "full", "attention": "attn_only"}.get(case["recompute"], "none"),
                "pipeline_interleaving": case["chunks"],
                "optimizer_sharding": case["zero"] == 1 and case["dp"] > 1,
                "tensor_par_comm_type": "rs_ag" if sharded else "ar",
                "tensor_par_overlap": "none",
                "seq_par_ag_redo": sharded,
                "data_par_overlap": False,
                "weight_offload": False,
                "activations_offload": False,
                "optimizer_offload": False,
                "training": True,
            }
        )
        machine = system(read(str(folder / "systems" / f"{name}.json")))
        model = llm(application, log)
        model.compile(machine, execution)
        model.run(machine)
        return float(model.get_stats_json(False)["total_time"])

    return seconds


def llm_analysis(folder: Path) -> Callable[[Case], float | None]:
    """llm-analysis, with its efficiencies; a pipeline is idle as 1F1B is, which it leaves to its user."""
    del folder
    # Its command line, which is not used here.
    sys.modules.setdefault("fire", types.ModuleType("fire"))
    analysis = importlib.import_module("llm_analysis.analysis")
    config = importlib.import_module("llm_analysis.config")
    again = analysis.ActivationRecomputation
    logging.disable(logging.CRITICAL)

    def seconds(case: Case) -> float | None:
        name = {"A100": "a100-sxm-80gb", "H100": "h100-sxm-80gb", "V100": "v100-sxm-32gb"}.get(case["device"])
        if name is None or case["cp"] > 1:
            return None
        found = analysis.LLMAnalysis(
            config.ModelConfig(
                name="case",
                num_layers=case["layers"],
                n_head=case["heads"],
                hidden_dim=case["width"],
                vocab_size=case["vocabulary"],
                max_seq_len=case["sequence"],
                num_key_value_heads=case["kv_heads"],
                ffn_embed_dim=case["ffn"],
                mlp_gated_linear_units=case["gated"],
            ),
            config.get_gpu_config_by_name(name),
            config.get_dtype_config_by_name("w16a16e16"),
            config.ParallelismConfig(
                tp_size=case["tp"],
                pp_size=case["pp"],
                dp_size=case["dp"],
                sp_size=case["tp"] if case["sequence_parallel"] else 1,
            ),
        ).training(
            batch_size_per_gpu=case["microbatch"],
            gradient_accumulation_steps=case["microbatches"],
            global_batch_size=case["batch"],
            seq_len=case["sequence"],
            activation_recomputation={"layers": again.FULL, "attention": again.ATTN_COMPUTE}.get(
                case["recompute"], again.NONE
            ),
            ds_zero=analysis.DSZeRO(case["zero"]),
            flash_attn=case["fused_attention"],
        )
        return float(found["latency_per_iter"])

    return seconds


PEERS: Mapping[str, Callable[[Path], Callable[[Case], float | None]]] = {
    "calculon": calculon,
    "llm-analysis": llm_analysis,
}


def main() -> None:
    """Read cases from standard input and write seconds to standard output."""
    peer, folder = sys.argv[1], Path(sys.argv[2])
    sys.path.insert(0, str(folder))
    out, sys.stdout = sys.stdout, sys.stderr
    seconds = PEERS[peer](folder)
    found: list[float | None] = []
    for case in json.load(sys.stdin):
        try:
            answer = seconds(case)
        except Exception:  # noqa: BLE001 - whatever a peer raises, it has no answer
            answer = None
        found.append(answer if answer is not None and math.isfinite(answer) and answer > 0 else None)
    json.dump(found, out)


if __name__ == "__main__":
    main()
