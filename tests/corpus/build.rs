//! Generates the functions of the test: every piece of code below, for each argument that it can be about, in
//! front of different other uses of the arguments.

use std::fmt::Write as _;
use std::path::Path;

/// What a piece of code does with the argument `X`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Does {
    /// It uses it, and code behind it can too.
    Uses,
    /// It uses it up.
    Moves,
    /// It uses it up, and the name means something else from there on.
    Renames,
    /// It mentions the name, and means something else.
    Mentions,
    /// As `Mentions`, and from there on the name means something else.
    Shadows,
}

use Does::{Mentions, Moves, Renames, Shadows, Uses};

const PIECES: &[(Does, &str)] = &[
    (Uses, "take(read(&X));"),
    (Uses, "take(X.n);"),
    (Uses, "let r = &X; take(read(r));"),
    (Uses, "let f = |q: u64| q + X.n; take(f(1));"),
    (Uses, "let f = move |q: &Loud| q.n; take(f(&X));"),
    (Uses, "async { take(read(&X)) }.await;"),
    (Uses, "take(format!(\"{X:?}\"));"),
    (Uses, "take(format!(\"{x}\", x = X.n));"),
    (Uses, "take(format!(\"{:>1$}\", 1, X.n as usize));"),
    (Uses, "assert!(X.n == 1, \"text\");"),
    (Uses, "take(vec![X.n; 2]);"),
    (Uses, "take(matches!(X.n, 1 | 2));"),
    (Uses, "take(matches!(num(), Some(q) if q < X.n));"),
    (Uses, "if X.n > 0 { take(read(&X)); }"),
    (Uses, "if let Some(q) = num() && q == X.n { take(q); }"),
    (Uses, "match X.n { 1 => {} _ => take(1) }"),
    (Uses, "for q in 0..X.n { take(q); }"),
    (Uses, "while X.n > 1 { take(2); }"),
    (Uses, "loop { if X.n > 0 { break; } }"),
    (Uses, "{ let X = &X; take(read(X)); }"),
    (
        Uses,
        "if let Some(X) = none() { take(X); } else { take(read(&X)); }",
    ),
    (Uses, "match num() { Some(q) if q > X.n => take(q), _ => {} }"),
    (Uses, "take(Abc { X: X.n, ..Abc::default() });"),
    (Uses, "take([X.n, 2][0]);"),
    (Uses, "take((&X, 1).1);"),
    (Uses, "take(X.n as usize + 1);"),
    (Uses, "macro_rules! m { () => { take(read(&X)) } } m!();"),
    (Uses, "field!(q = X.n);"),
    (Uses, "select! { q = X.n => { take(q) } }"),
    (
        Uses,
        "let Some(q) = Some(&X) else { return Ok(()) }; take(read(q));",
    ),
    (Uses, "let q: fn(&Loud) -> u64 = read; take(q(&X));"),
    (Uses, "take(num().map(|q| q + X.n));"),
    (Uses, "take(std::mem::size_of_val(&X));"),
    (Uses, "if num() == Some(3) { return Ok(take(read(&X))); }"),
    (Uses, "let q = async |q: u64| q + X.n; take(q(1).await);"),
    (Moves, "drop(X);"),
    (Moves, "let kept = X; take(read(&kept));"),
    (Moves, "let f = move || read(&X); take(f());"),
    (Moves, "let (q, _) = (X, 1); take(read(&q));"),
    (Moves, "let o = Some(X); if let Some(X) = &o { take(read(X)); }"),
    (Moves, "match X { q => take(read(&q)) }"),
    (Moves, "take(vec![X]);"),
    (Moves, "async move { take(read(&X)) }.await;"),
    (
        Renames,
        "let X = X; let f = |q: u8| q; take(f(1)); take(read(&X));",
    ),
    (Renames, "let X = X; take(read(&X));"),
    (Renames, "let (X, _q) = (X, 1); take(read(&X));"),
    (Renames, "let X = Some(X); take(X.is_some());"),
    (Mentions, "if let Some(X) = none() { take(X); }"),
    (Mentions, "if let Some(X) = some() { take(read(&X)); }"),
    (Mentions, "if let Some(X) = num() && X > 3 { take(X); }"),
    (Mentions, "while let Some(X) = none() { take(X); }"),
    (Mentions, "for X in 0..2 { take(X); }"),
    (Mentions, "match some() { Some(X) => take(read(&X)), None => {} }"),
    (Mentions, "match num() { Some(X) if X > 3 => take(X), _ => {} }"),
    (Mentions, "match (1, 2) { (X, 5) | (5, X) => take(X), _ => {} }"),
    (Mentions, "take(match 3 { X @ 1..=2 => X, X => X });"),
    (Mentions, "let f = |X: u64| X + 1; take(f(1));"),
    (Mentions, "let f = |(X, _): (u64, u64)| X; take(f((1, 2)));"),
    (Mentions, "take(num().is_some_and(|X| X > 3));"),
    (Mentions, "take([1].iter().map(|X| X + 1).sum::<u64>());"),
    (Mentions, "{ let X = 1; take(X); }"),
    (Mentions, "{ fn X() -> u64 { 1 } take(X()); }"),
    (Mentions, "{ fn inner(X: u64) -> u64 { X } take(inner(1)); }"),
    (Mentions, "{ struct Inner { X: u64 } take(Inner { X: 1 }.X); }"),
    (Mentions, "{ let Abc { X, .. } = Abc::default(); take(X); }"),
    (Mentions, "{ let [X, ..] = [1, 2]; take(X); }"),
    (Mentions, "'X: loop { break 'X; }"),
    (Mentions, "take(X::number());"),
    (Mentions, "let q: X::Number = 1; take(q);"),
    (Mentions, "take(Abc::default().X);"),
    (Mentions, "take(Abc::default().X());"),
    (Mentions, "take(Abc::X(&Abc::default()));"),
    (Mentions, "take(Abc { X: 1, ..Abc::default() });"),
    (Mentions, "take(\"/orders/{X}\");"),
    (Mentions, "take(concat!(\"{X}\", stringify!(X)));"),
    (Mentions, "take(format!(\"{{X}} {}\", 1));"),
    (Mentions, "{ #[doc = \"{X}\"] fn inner() {} inner(); }"),
    (Mentions, "field!(X = 1);"),
    (Mentions, "#[cfg(any())] take(X);"),
    (Mentions, "#[cfg(any())] if X.n > 1 { take(X); }"),
    (Mentions, "take(match 1 { #[cfg(any())] 1 => X.n, _ => 2 });"),
    (Mentions, "select! { X = 1 => { take(X) } }"),
    (Mentions, "take(matches!(num(), Some(X) if X > 5));"),
    (Mentions, "take(vec![num().map(|X| X + 1)]);"),
    (Mentions, "take(async { let X = 1; X }.await);"),
    (Shadows, "let X = loud(\"local\"); take(read(&X));"),
    (
        Shadows,
        "let Some(X) = some() else { return Ok(()) }; take(read(&X));",
    ),
    (Shadows, "let (X, _) = (loud(\"local\"), 1); take(read(&X));"),
    (Shadows, "let X; X = loud(\"local\"); take(read(&X));"),
];

/// Code behind a piece: what it uses, and whether it uses that up.
const TAILS: &[&[(char, bool)]] = &[
    &[],
    &[('Y', false), ('Z', false)],
    &[('Z', false), ('X', false)],
    &[('Y', true), ('X', false)],
    &[('Z', true), ('Y', false)],
    &[('X', false), ('Z', true), ('Y', true)],
];

/// Arguments that are called `a`, `b` and `c`, and values for them.
const ARGUMENTS: &[(&str, &str)] = &[
    (
        "a: Loud, b: Loud, c: Loud",
        "loud(\"a\"), loud(\"b\"), loud(\"c\")",
    ),
    (
        "(a, b): (Loud, Loud), c: Loud",
        "(loud(\"a\"), loud(\"b\")), loud(\"c\")",
    ),
    (
        "a: Loud, [b, c]: [Loud; 2]",
        "loud(\"a\"), [loud(\"b\"), loud(\"c\")]",
    ),
    (
        "a: Loud, (b, c, _): (Loud, Loud, Loud)",
        "loud(\"a\"), (loud(\"b\"), loud(\"c\"), loud(\"rest\"))",
    ),
    (
        "Trio { a, c, b }: Trio",
        "Trio { a: loud(\"a\"), b: loud(\"b\"), c: loud(\"c\") }",
    ),
    (
        "a: Loud, _: u8, b: Loud, c @ Loud { .. }: Loud",
        "loud(\"a\"), 1, loud(\"b\"), loud(\"c\")",
    ),
];

/// Functions that warn.
const WARNS: &[(&str, &str, &str)] = &[
    ("unused_mut", "mut n: u64", "take(n);"),
    ("unused_must_use", "n: u64", "n + 1;"),
    ("unreachable_code", "n: u64", "take(n); return Ok(());"),
];

struct Function {
    arguments: String,
    values: String,
    body: String,
    unused: Vec<char>,
    /// A lint that it sets off; then the key does not use the arguments.
    warns: Option<&'static str>,
}

impl Function {
    fn new(at: usize, does: Does, piece: &str, names: [char; 3], tail: &[(char, bool)]) -> Option<Self> {
        let named = |code: &str| {
            let [x, y, z] = names;
            code.replace('X', &x.to_string())
                .replace('Y', &y.to_string())
                .replace('Z', &z.to_string())
        };
        let mut body = named(piece) + " pause().await;";
        let mut used = vec![];
        if matches!(does, Uses | Moves | Renames) {
            used.push(names[0]);
        }
        for (name, moves) in tail {
            match (name, does) {
                ('X', Moves | Renames | Shadows) => return None,
                ('X', _) => used.push(names[0]),
                ('Y', _) => used.push(names[1]),
                _ => used.push(names[2]),
            }
            body += &named(&if *moves {
                format!(" drop({name});")
            } else {
                format!(" take(read(&{name}));")
            });
        }
        let (arguments, values) = ARGUMENTS[at % ARGUMENTS.len()];
        Some(Self {
            arguments: arguments.into(),
            values: values.into(),
            body,
            unused: "abc".chars().filter(|name| !used.contains(name)).collect(),
            warns: None,
        })
    }

    /// Nothing but the body can use the argument, and it does not.
    fn with_unused_argument(piece: &str) -> Self {
        Self {
            arguments: "a: Loud, b: Loud".into(),
            values: "loud(\"a\"), loud(\"b\")".into(),
            body: format!("take(read(&a)); {} pause().await;", piece.replace('X', "b")),
            unused: vec!['b'],
            warns: Some("unused_variables"),
        }
    }

    /// Bare, it reads what the attribute's key reads.
    fn write(&self, with_attribute: bool, number: usize, code: &mut String) {
        let Self { arguments, body, .. } = self;
        let attribute = if with_attribute {
            self.attribute()
        } else {
            String::new()
        };
        let key = match self.warns {
            None if !with_attribute => "let _ = (a.n, b.n, c.n); ",
            _ => "",
        };
        let expect = self
            .warns
            .map(|lint| format!("#[expect({lint})] "))
            .unwrap_or_default();
        writeln!(
            code,
            "{attribute}{expect}pub async fn f{number}({arguments}) -> R {{ {key}{body} Ok(()) }}"
        )
        .expect("a string");
    }

    fn attribute(&self) -> String {
        if self.warns.is_some() {
            return "#[distributed_lock(key = \"k\", crate = dblock_corpus_tests::runtime)] ".into();
        }
        let unused: String = self.unused.iter().map(|name| format!("{name},")).collect();
        format!(
            "#[distributed_lock(key = \"{{a.n}}{{b.n}}{{c.n}}\", on_busy = Ok(take(({unused}))), \
             crate = dblock_corpus_tests::runtime)] "
        )
    }
}

fn functions() -> Vec<Function> {
    let mut functions = Vec::new();
    for (at, (does, piece)) in PIECES.iter().enumerate() {
        for (turn, names) in [['a', 'b', 'c'], ['b', 'c', 'a'], ['c', 'a', 'b']]
            .into_iter()
            .enumerate()
        {
            // A third of the tails each, so that every piece meets all of them.
            let tails = TAILS.iter().skip((at + turn) % 3).step_by(3);
            functions.extend(tails.filter_map(|tail| Function::new(at + turn, *does, piece, names, tail)));
        }
        if matches!(does, Mentions | Shadows) {
            functions.push(Function::with_unused_argument(piece));
        }
    }
    functions.extend(WARNS.iter().map(|(lint, arguments, body)| Function {
        arguments: (*arguments).into(),
        values: "1".into(),
        body: format!("pause().await; {body}"),
        unused: vec![],
        warns: Some(lint),
    }));
    functions
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let functions = functions();
    let mut code = String::new();
    for (module, with_attribute) in [("bare", false), ("locked", true)] {
        writeln!(
            code,
            "mod {module} {{\nuse dblock_corpus_tests::*;\ntype R = Result<(), runtime::__private::LockError>;"
        )
        .expect("a string");
        code += if with_attribute {
            "use dblock_macros::distributed_lock;\n"
        } else {
            ""
        };
        for name in "abc".chars() {
            writeln!(
                code,
                "mod {name} {{ pub type Number = u64; pub fn number() -> Number {{ 1 }} }}"
            )
            .expect("a string");
        }
        for (number, function) in functions.iter().enumerate() {
            function.write(with_attribute, number, &mut code);
        }
        code += "}\n";
    }
    code += "const CASES: &[Case] = &[\n";
    for (number, function) in functions.iter().enumerate() {
        let Function {
            values,
            body,
            arguments,
            unused,
            ..
        } = function;
        let unused: Vec<_> = unused.iter().map(char::to_string).collect();
        let body = format!("({arguments}) {{ {body} }}");
        writeln!(
            code,
            "Case {{ body: {body:?}, unused: &{unused:?}, bare: || Box::pin(bare::f{number}({values})), \
             locked: || Box::pin(locked::f{number}({values})) }},"
        )
        .expect("a string");
    }
    code += "];\n";
    let folder = std::env::var("OUT_DIR").expect("cargo sets it");
    std::fs::write(Path::new(&folder).join("functions.rs"), code).expect("the folder is ours");
}
