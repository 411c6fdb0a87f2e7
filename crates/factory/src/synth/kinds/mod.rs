//! The kinds of bugs: one file each, and this list.

mod common;
#[cfg(test)]
mod tests;

use super::{Bugs, code::Code, edit::Edit, random::Coin};
use crate::syntax::{DefinitionKind, Node};

macro_rules! list {
    ($($name:ident),* $(,)?) => {
        $(mod $name;)*
        const KINDS: &[Kind] = &[$($name::KIND),*];
    };
}

list![
    func_pm_class_rm_base,
    func_pm_class_rm_funcs,
    func_pm_class_shuffle_funcs,
    func_pm_ctrl_invert_if,
    func_pm_ctrl_shuffle,
    func_pm_op_change,
    func_pm_flip_operators,
    func_pm_op_swap,
    func_pm_op_break_chains,
    func_pm_op_change_const,
    func_pm_remove_loop,
    func_pm_remove_cond,
    func_pm_remove_assign,
    func_pm_remove_wrapper,
    argument_omitted,
    argument_order,
    arithmetic,
    boolean,
    boundary,
    collection_method,
    comparison,
    constant,
    copy_removed,
    default_value,
    exception,
    loop_control,
    missing_await,
    missing_none_check,
    return_value,
    slice,
    string_method,
    swapped_branches,
    variable_misuse,
    accumulation,
    aggregate,
    attribute_misuse,
    branch_removed,
    call_removed,
    condition_dropped,
    conversion_removed,
    guard_removed,
    ordering,
    unpacking_order,
];

/// All kinds, in an order that does not change: new ones come last.
pub fn kinds() -> &'static [Kind] {
    KINDS
}

/// One way to write a bug.
pub struct Kind {
    /// Its name in candidates and tasks.
    pub name: &'static str,
    /// What is wrong in the code it leaves, as a phrase.
    pub bug: &'static str,
    pub(super) rule: Rule,
}

impl Kind {
    /// The likelihood that a place is changed: SWE-smith's 0.2 for its kinds, and every place for
    /// the others.
    pub fn default_likelihood(&self) -> f64 {
        match self.rule {
            Rule::Units { .. } => 0.2,
            Rule::Functions { .. } | Rule::Places { .. } => 1.0,
        }
    }

    const fn unit(
        name: &'static str,
        bug: &'static str,
        of: DefinitionKind,
        change: fn(&Code<'_>, usize, &mut Coin) -> Vec<Edit>,
    ) -> Kind {
        let rule = Rule::Units { of, change };
        Kind { name, bug, rule }
    }

    const fn places(
        name: &'static str,
        bug: &'static str,
        nodes: &'static [&'static str],
        find: fn(&Code<'_>, Node<'_>, &mut Bugs),
    ) -> Kind {
        let rule = Rule::Places { nodes, find };
        Kind { name, bug, rule }
    }

    const fn functions(
        name: &'static str,
        bug: &'static str,
        find: fn(&Code<'_>, usize, &mut Bugs),
    ) -> Kind {
        let rule = Rule::Functions { find };
        Kind { name, bug, rule }
    }
}

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// How a kind finds what it changes.
#[derive(Clone, Copy)]
pub(super) enum Rule {
    /// Once for each function or class: changes many places of it, each where the coin says so.
    Units {
        of: DefinitionKind,
        change: fn(&Code<'_>, usize, &mut Coin) -> Vec<Edit>,
    },
    /// Once for each function, which is given by its index: every bug on its own.
    Functions {
        find: fn(&Code<'_>, usize, &mut Bugs),
    },
    /// Once for each node of these kinds that may be changed: every bug on its own.
    Places {
        nodes: &'static [&'static str],
        find: fn(&Code<'_>, Node<'_>, &mut Bugs),
    },
}
