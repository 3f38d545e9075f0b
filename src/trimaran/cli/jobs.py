"""`trimaran jobs`: what can be trained without writing anything."""

from trimaran.cli.options import Json
from trimaran.cli.output import console, errors_reported, print_json


def jobs(as_json: Json = False) -> None:
    """List the built-in jobs, the published networks and decoders."""
    with errors_reported(as_json=as_json):
        from rich.table import Table

        from trimaran.jobs.resolve import BUILT_IN, NETWORKS
        from trimaran.networks.names import option_names, sizes_of
        from trimaran.networks.published_decoders import DECODER_FAMILIES

        listed = {**BUILT_IN, **NETWORKS}
        if as_json:
            entries = [
                {"name": name, "summary": job.summary}
                | ({"sizes": sizes_of(name), "options": option_names(name)} if name in NETWORKS else {})
                for name, job in listed.items()
            ]
            decoders = [
                {"name": name, "title": family.title, "sizes": tuple(family.sizes)}
                for name, family in DECODER_FAMILIES.items()
            ]
            print_json({"jobs": entries, "decoders": decoders})
            return
        table = Table("job", "what it is", box=None)
        for name, job in listed.items():
            table.add_row(name, job.summary)
        console().print(table)
        console().print(
            "\nA network of another size, or with options: gpt2:1.5b, bert:large:sequence=512, resnet50:image=160."
        )
        families = Table("decoder, by its published configuration", "sizes", box=None)
        for name, family in DECODER_FAMILIES.items():
            families.add_row(name, " ".join(family.sizes))
        console().print(families)
        console().print('Such as "mixtral:8x7b" or "qwen3:235b-a22b:sequence=8192".')
        console().print("Your own: file.py:factory, where factory() returns a trimaran.Job.")
        console().print("A Hugging Face configuration: config.json, or config.json:sequence=2048; data are synthetic.")
