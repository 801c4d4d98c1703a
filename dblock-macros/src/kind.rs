//! The attributes of this crate. If several stand on one function, they are expanded together: only so is the
//! topmost one also the outermost.

use syn::{Attribute, Path};

/// The attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Lock,
    Once,
    Retry,
}

impl Kind {
    /// The attribute's kind, if it is ours: by its bare name, or behind a path of dblock, as which `krate` is
    /// known too. Another crate may have an attribute of the same name.
    pub(crate) fn of(attr: &Attribute, krate: &Path) -> Option<Self> {
        let names = |path: &Path| {
            path.segments
                .iter()
                .map(|part| part.ident.to_string())
                .collect::<Vec<_>>()
        };
        let path = names(attr.path());
        let (name, module) = path.split_last()?;
        let ours = module.last().is_none_or(|name| name == "dblock") || module == names(krate);
        [Self::Lock, Self::Once, Self::Retry]
            .into_iter()
            .find(|kind| ours && name == kind.name())
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lock => "distributed_lock",
            Self::Once => "run_once",
            Self::Retry => "optimistic_retry",
        }
    }

    /// Its work in a few words, for the message that it needs an async function.
    pub(crate) fn doing(self) -> &'static str {
        match self {
            Self::Lock => "taking a lock",
            Self::Once => "running something once",
            Self::Retry => "running the body again",
        }
    }

    /// Its work on a body, for the message that there is none.
    pub(crate) fn with_body(self) -> &'static str {
        match self {
            Self::Lock => "run under the lock",
            Self::Once => "run once",
            Self::Retry => "run again",
        }
    }
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    #[test]
    fn an_attribute_of_another_crate_is_not_ours() {
        let krate = parse_quote!(my::lock);
        let of = |path: Path| Kind::of(&parse_quote!(#[#path(key = "a")]), &krate);
        assert_eq!(of(parse_quote!(distributed_lock)), Some(Kind::Lock));
        assert_eq!(of(parse_quote!(::dblock::run_once)), Some(Kind::Once));
        assert_eq!(of(parse_quote!(my::lock::optimistic_retry)), Some(Kind::Retry));
        for other in [
            parse_quote!(other),
            parse_quote!(dblock::other),
            parse_quote!(other::run_once),
            parse_quote!(lock::run_once),
        ] {
            assert_eq!(of(other), None);
        }
    }
}
