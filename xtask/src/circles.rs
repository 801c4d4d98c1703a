//! Finds circles of modules: two that import from each other, so that neither can be read without the other.
//!
//! A module may use its ancestors and what is in it. Any other path ties two neighbours: those below the last
//! module that both ends share. So `store::table` that uses `key` ties `store` to `key`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::ensure;
use syn::UseTree;
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};

/// These may use what they like.
const OF_TESTS: [&str; 2] = ["tests", "loom_tests"];

/// A path from the root of the crate.
type Names = Vec<String>;

#[derive(Default)]
struct Modules {
    all: BTreeSet<Names>,
    /// From which module, to what, and where that is written.
    uses: Vec<(Names, Names, String)>,
    /// The names that a module imports. Others may import them from there.
    aliases: BTreeMap<Names, Names>,
}

/// Fails with each circle of the crate in `src`.
pub(crate) fn check(src: &Path) -> anyhow::Result<()> {
    let mut modules = Modules::default();
    modules.read(src, &[])?;
    let circles = modules.circles().join("\n");
    ensure!(circles.is_empty(), "{circles}\nmove what both need elsewhere");
    Ok(())
}

impl Modules {
    fn read(&mut self, folder: &Path, module: &[String]) -> anyhow::Result<()> {
        for entry in folder.read_dir()? {
            let path = entry?.path();
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            let module = match &*name {
                "lib" | "mod" => module.to_vec(),
                name => [module, &[name.to_owned()]].concat(),
            };
            let of_tests = OF_TESTS.contains(&&*name);
            if path.is_dir() && !of_tests {
                self.read(&path, &module)?;
            } else if path.extension().is_some_and(|extension| extension == "rs") && !of_tests {
                let file = syn::parse_file(&std::fs::read_to_string(&path)?)?;
                self.all.insert(module.clone());
                let (path, found) = (&path, &mut *self);
                Reader { path, module, found }.visit_file(&file);
            }
        }
        Ok(())
    }

    /// The module that contains the item of a path.
    fn owner(&self, path: &[String]) -> Names {
        let is_module = |depth: &usize| self.all.contains(&path[..*depth]);
        let depth = (0..=path.len()).rfind(is_module).unwrap_or(0);
        match path.get(..=depth).and_then(|name| self.aliases.get(name)) {
            Some(real) if real != path => self.owner(real),
            _ => path[..depth].to_vec(),
        }
    }

    /// A line for each circle.
    fn circles(&self) -> Vec<String> {
        let mut ties = BTreeMap::new();
        for (from, to, place) in &self.uses {
            let to = self.owner(to);
            let shared = from.iter().zip(&to).take_while(|(from, to)| from == to).count();
            if shared < from.len().min(to.len()) {
                let ends = (from[..=shared].join("::"), to[..=shared].join("::"));
                ties.entry(ends).or_insert(place);
            }
        }
        let circle = |((one, other), place): (&(String, String), &&String)| {
            let back = ties.get(&(other.clone(), one.clone())).filter(|_| one < other)?;
            Some(format!("{one} uses {other} at {place}, and back at {back}"))
        };
        ties.iter().filter_map(circle).collect()
    }
}

/// Reads the paths of one file.
struct Reader<'a> {
    path: &'a Path,
    module: Names,
    found: &'a mut Modules,
}

impl Reader<'_> {
    /// Returns the path from the root on. A path of another crate leads to no module of this one.
    fn note(&mut self, path: &[String], line: usize) -> Names {
        let ups = path.iter().take_while(|name| *name == "super").count();
        let to = match path.first().map(String::as_str) {
            Some("crate") => path[1..].to_vec(),
            Some("self") => [&self.module, &path[1..]].concat(),
            _ => [&self.module[..self.module.len() - ups], &path[ups..]].concat(),
        };
        let place = format!("{}:{line}", self.path.display());
        self.found.uses.push((self.module.clone(), to.clone(), place));
        to
    }

    fn note_tree(&mut self, before: &[String], tree: &UseTree) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        let (path, alias) = match tree {
            UseTree::Path(path) => return self.note_tree(&with(&path.ident), &path.tree),
            UseTree::Group(group) => return group.items.iter().for_each(|tree| self.note_tree(before, tree)),
            UseTree::Name(name) if name.ident != "self" => (with(&name.ident), Some(&name.ident)),
            UseTree::Rename(rename) => (with(&rename.ident), Some(&rename.rename)),
            _ => (before.to_vec(), None),
        };
        let to = self.note(&path, tree.span().start().line);
        if let Some(alias) = alias {
            let alias = [&*self.module, &[alias.to_string()]].concat();
            self.found.aliases.insert(alias, to);
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !OF_TESTS.iter().any(|name| item.ident == name) {
            self.module.push(item.ident.to_string());
            visit::visit_item_mod(self, item);
            self.module.pop();
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.note_tree(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path.segments.iter().map(|segment| segment.ident.to_string());
        self.note(&names.collect::<Names>(), path.span().start().line);
        visit::visit_path(self, path);
    }
}

#[cfg(test)]
mod tests;
