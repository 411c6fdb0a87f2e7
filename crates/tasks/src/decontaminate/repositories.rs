//! Repositories of published sets of tasks, for checks without their files.

/// A published set and its repositories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownSet {
    /// As the command line names it.
    pub name: &'static str,
    /// What it is.
    pub description: &'static str,
    /// `OWNER/NAME`.
    pub repositories: &'static [&'static str],
}

/// The sets whose repositories are known here. Sets with thousands of repositories are not listed:
/// their files name them.
pub const KNOWN_SETS: [KnownSet; 3] = [
    KnownSet {
        name: "swe-bench",
        description: "the 12 test repositories of SWE-bench, Lite and Verified",
        repositories: &[
            "astropy/astropy",
            "django/django",
            "matplotlib/matplotlib",
            "mwaskom/seaborn",
            "pallets/flask",
            "psf/requests",
            "pydata/xarray",
            "pylint-dev/pylint",
            "pytest-dev/pytest",
            "scikit-learn/scikit-learn",
            "sphinx-doc/sphinx",
            "sympy/sympy",
        ],
    },
    KnownSet {
        name: "swe-bench-dev",
        description: "the 6 development repositories of SWE-bench",
        repositories: &[
            "marshmallow-code/marshmallow",
            "pvlib/pvlib-python",
            "pydicom/pydicom",
            "pylint-dev/astroid",
            "pyvista/pyvista",
            "sqlfluff/sqlfluff",
        ],
    },
    KnownSet {
        name: "swe-gym",
        description: "the 11 repositories of SWE-Gym",
        repositories: &[
            "Project-MONAI/MONAI",
            "bokeh/bokeh",
            "conan-io/conan",
            "dask/dask",
            "facebookresearch/hydra",
            "getmoto/moto",
            "iterative/dvc",
            "modin-project/modin",
            "pandas-dev/pandas",
            "pydantic/pydantic",
            "python/mypy",
        ],
    },
];
