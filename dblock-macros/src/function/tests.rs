use syn::parse_quote;

use super::*;

fn read(item: TokenStream) -> syn::Result<Function> {
    Function::read(item, Kind::Lock)
}

#[test]
fn a_body_has_braces() {
    let fragment = Group::new(Delimiter::None, quote!({ 1 }));
    assert_eq!(read(quote!(fn f() #fragment)).unwrap().body.to_string(), "{ 1 }");
    for other in [quote!((1)), quote!(({ 1 })), quote!([{ 1 }])] {
        assert!(read(quote!(fn f() #other)).is_err(), "{other}");
    }
}

#[test]
fn other_items_are_named() {
    for (item, kind, words) in [
        ("union U { a: u8 }", Kind::Lock, "found a union"),
        ("type T = u8;", Kind::Lock, "found a type alias"),
        ("static S: u8 = 1;", Kind::Lock, "found a static"),
        ("use a::b;", Kind::Lock, "found an import"),
        ("macro_rules! m {}", Kind::Lock, "found a macro"),
        ("|x| x", Kind::Lock, "found a closure"),
        ("move || 1", Kind::Lock, "found a closure"),
        ("#[x] static || 1", Kind::Lock, "found a closure"),
        ("impl S {}", Kind::Once, "each method that is to run once"),
        ("trait T {}", Kind::Retry, "each method that is to run again"),
    ] {
        let message = Function::read(item.parse().unwrap(), kind)
            .err()
            .unwrap()
            .to_string();
        assert!(message.contains(words), "{item}: {message}");
    }
}

#[test]
fn an_argument_has_its_own_mut() {
    let function = read(quote!(
        fn f(&mut self, a: A, mut b: B) {}
    ))
    .unwrap();
    assert!(function.mutability(&parse_quote!(a)).is_none());
    assert!(function.mutability(&parse_quote!(b)).is_some());
}

#[test]
fn every_name_of_a_pattern_is_an_argument() {
    let sig = parse_quote!(fn f(
        (a): A, &b: &B, [c, ..]: C, (d, _): D, E(e): E, F { f, x: g, .. }: F, h @ H(i): H, (J(j) | K(j)): J, mut k: K
    ));
    assert_eq!(Scope::new(&sig).names().concat(), "abcdefghijk");
}

#[test]
fn what_is_taken_apart_takes_the_place_of_the_argument() {
    let mut scope = Scope::new(&parse_quote!(fn f(__arg1: P, a: A, b: B)));
    scope.unpack(&[parse_quote!(a), parse_quote!(c)]);
    assert_eq!(scope.names().join(" "), "b a c");
}

#[test]
fn an_example_is_something_of_the_function() {
    for (sig, first, second) in [
        ("fn f(&self, r#a: A, b: B)", "a", "b"),
        ("fn f(a: A)", "a", "a"),
        ("fn f(&self)", "self.id", "self.id"),
        ("fn f()", "order_id", "order_id"),
    ] {
        let scope = Scope::new(&syn::parse_str(sig).unwrap());
        assert_eq!((&*scope.example(0), &*scope.example(1)), (first, second), "{sig}");
    }
}
