"""`make check` looks at rooms; here at modules, wherever in a module an import stands."""

from graphlib import TopologicalSorter

import grimp


def test_no_module_imports_itself_through_others() -> None:
    graph = grimp.build_graph("trimaran", "trimaran_studies", exclude_type_checking_imports=True, cache_dir=None)
    # A module that is run may import itself by its name. A circle is a CycleError that lists it.
    TopologicalSorter(
        {name: graph.find_modules_directly_imported_by(name) - {name} for name in graph.modules}
    ).prepare()
