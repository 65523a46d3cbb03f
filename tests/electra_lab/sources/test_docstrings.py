"""The documentation in a source file, by Python's own parser."""

import ast

from electra_lab.sources.docstrings import documentation, installed_files

NESTED = '''
"""module"""
if 1:
    def first():
        """first"""
        class Inner:
            """inner"""
            def method(self): """method"""
        return lambda: """not a docstring"""
else:
    async def second(): """second"""
try:
    def third(): """third"""
except ValueError:
    def fourth(): """fourth"""
else:
    def fifth(): """fifth"""
finally:
    def sixth(): """sixth"""
match 1:
    case 2:
        def seventh(): """seventh"""
with open("x") as file:
    while file:
        for each in file:
            class Eighth: """eighth"""
        else:
            def ninth(): """ninth"""
try: pass
except* OSError:
    def tenth(): """tenth"""
'''


def every_node(source: str | bytes) -> list[str]:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    found = [ast.get_docstring(node, clean=False) for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    return [text for text in found if text]


def test_they_are_found_wherever_they_are_in_the_order_of_a_walk() -> None:
    found = list(documentation(NESTED.encode()))
    assert found == every_node(NESTED)
    names = "module first inner method second third fourth fifth sixth seventh eighth ninth tenth"
    assert sorted(found) == sorted(names.split())


def test_so_they_are_in_the_files_of_python() -> None:
    sources = [file.read_bytes() for file, name in installed_files() if name.startswith("python/a")]
    assert len(sources) > 20
    for source in sources:
        assert list(documentation(source)) == every_node(source)
