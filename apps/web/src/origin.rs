//! Whether a form was sent from this page, or from somebody else's.

use axum::http::header::{self, HeaderName};
use axum::http::request::Parts;
use axum::http::uri::Authority;

/// Browsers set it where a page is served over TLS or from the same host, and no script can.
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// A browser that does not say so in `Sec-Fetch-Site` names the origin of a form. It must be the host that
/// was asked. Nothing that a browser sends has neither of them.
pub(crate) fn is_ours(request: &Parts) -> bool {
    let text = |name: &HeaderName| request.headers.get(name)?.to_str().ok();
    if let Some(site) = text(&SITE) {
        return site == "same-origin";
    }
    let asked = text(&header::HOST).or_else(|| request.uri.authority().map(Authority::as_str));
    let from = text(&header::ORIGIN).and_then(|origin| Some(origin.split_once("://")?.1));
    from.zip(asked)
        .is_some_and(|(from, asked)| from.eq_ignore_ascii_case(asked))
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    #[test]
    fn only_this_page_may_send_forms() {
        for (headers, ours) in [
            (&[][..], false),
            (&[("sec-fetch-site", "same-origin")], true),
            (&[("sec-fetch-site", "same-site")], false),
            (&[("sec-fetch-site", "cross-site")], false),
            (&[("sec-fetch-site", "none")], false),
            (
                &[
                    ("sec-fetch-site", "cross-site"),
                    ("origin", "http://page:80"),
                    ("host", "page:80"),
                ],
                false,
            ),
            (&[("origin", "http://page:80"), ("host", "page:80")], true),
            (&[("origin", "https://Page"), ("host", "page")], true),
            (&[("origin", "http://page:81"), ("host", "page:80")], false),
            (&[("origin", "http://evil"), ("host", "page")], false),
            (&[("origin", "null"), ("host", "page")], false),
            (&[("host", "page")], false),
        ] {
            let mut request = Request::post("/revoke");
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            let (parts, ()) = request.body(()).unwrap().into_parts();
            assert_eq!(is_ours(&parts), ours, "{headers:?}");
        }
    }
}
