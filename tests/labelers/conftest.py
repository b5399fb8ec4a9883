"""Every test class that lists ``cases`` meets each of them in turn."""


def pytest_generate_tests(metafunc):
    if "case" in metafunc.fixturenames and hasattr(metafunc.cls, "cases"):
        metafunc.parametrize("case", metafunc.cls.cases, ids=lambda case: repr(case.labeler))
