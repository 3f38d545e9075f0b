"""`trimaran jobs`: what can be trained without writing anything."""

from trimaran.cli.options import Json
from trimaran.cli.output import console, errors_reported, print_json


def jobs(as_json: Json = False) -> None:
    """List the built-in jobs, the published networks and decoders."""
    with errors_reported(as_json=as_json):
        from trimaran.jobs.resolve import BUILT_IN, NETWORKS
        from trimaran.networks.names import option_names, sizes_of
        from trimaran.networks.published_decoders import DECODER_FAMILIES
        from trimaran.report.tables import add_words, frame_table, print_next

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
        out = console()
        out.print(
            f"{len(listed)} jobs and networks, and {len(DECODER_FAMILIES)} families of decoders, are known by name; a "
            "file.py:factory and a Hugging Face config.json are jobs too.\n"
        )
        table = frame_table(
            "",
            "M: million parameters; images, windows and sentences are synthetic, of the size that is said\n"
            "Another size, or options: gpt2:1.5b, bert:large:sequence=512, resnet50:image=160.",
        )
        add_words(table, "job", no_wrap=True)
        add_words(table, "description")
        for name, job in listed.items():
            table.add_row(name, job.summary)
        out.print(table)
        out.print()
        families = frame_table(
            "Decoders, by their published configuration", 'Such as "mixtral:8x7b" or "qwen3:235b-a22b:sequence=8192".'
        )
        add_words(families, "family", no_wrap=True)
        add_words(families, "sizes")
        for name, family in DECODER_FAMILIES.items():
            families.add_row(name, " ".join(family.sizes))
        out.print(families)
        out.print(
            "\nYour own: file.py:factory, where factory() returns a trimaran.Job.\n"
            "A Hugging Face configuration: config.json, or config.json:sequence=2048; its data are synthetic."
        )
        print_next(out, ["trimaran", "plan", "digits"])
