//! An answer as the record keeps it: status, some headers, and the body.

use axum::body::{Body, Bytes};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use dblock::RunOptions;
use futures_util::{StreamExt as _, future, stream};
use http_body_util::BodyExt as _;
use serde::ser::Error as _;
use serde::{Deserialize, Serialize, Serializer};

use crate::problem::Problem;

/// The headers that a replay has, if the answer had them. Cookies are not among them.
pub(crate) const REPLAYED: [HeaderName; 11] = [
    header::CACHE_CONTROL,
    header::CONTENT_DISPOSITION,
    header::CONTENT_ENCODING,
    header::CONTENT_LANGUAGE,
    header::CONTENT_LOCATION,
    header::CONTENT_TYPE,
    header::ETAG,
    header::LAST_MODIFIED,
    header::LINK,
    header::LOCATION,
    header::VARY,
];

/// On a replay. The draft has no such header; Stripe's API has this one.
const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The part of an answer that is kept.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Stored")]
pub(crate) struct Answer {
    status: StatusCode,
    headers: Vec<(HeaderName, HeaderValue)>,
    /// Or why it cannot be kept.
    body: Result<Bytes, String>,
}

/// As the JSON has it. The text of a header has one character for each of its bytes.
#[derive(Serialize, Deserialize)]
struct Stored {
    status: u16,
    headers: Vec<(String, String)>,
    #[serde(flatten)]
    body: StoredBody,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum StoredBody {
    Text(String),
    Base64(String),
}

impl Answer {
    /// Takes down what is kept, and gives the answer back. It reads the body to its end, or up to the longest
    /// that could be kept.
    pub(crate) async fn of(
        response: Response,
        replayed: &[HeaderName],
    ) -> Result<(Self, Response), axum::Error> {
        let (parts, body) = response.into_parts();
        let headers = parts.headers.iter().filter(|(name, _)| replayed.contains(name));
        let headers = headers
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        let (start, rest) = read(body, RunOptions::MAX_RESULT).await?;
        let (kept, body) = match rest {
            None => (Ok(start.clone()), Body::from(start)),
            Some(rest) => {
                let why = format!("its body has more than {} bytes", RunOptions::MAX_RESULT);
                let start = stream::once(future::ready(Ok(start)));
                (Err(why), Body::from_stream(start.chain(rest.into_data_stream())))
            }
        };
        let answer = Self {
            status: parts.status,
            headers,
            body: kept,
        };
        Ok((answer, Response::from_parts(parts, body)))
    }

    /// The answer in place of one whose body broke off: nothing of that can be kept.
    pub(crate) fn broken(error: &axum::Error) -> (Self, Response) {
        let answer = Self {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            headers: Vec::new(),
            body: Err(format!("its body broke off: {error}")),
        };
        (answer, Problem::internal().into_response())
    }

    /// The answer to a request that was sent again.
    pub(crate) fn replay(self) -> Response {
        let mut response = self.into_response();
        let yes = HeaderValue::from_static("true");
        response.headers_mut().insert(IDEMPOTENT_REPLAYED, yes);
        response
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        // An answer that was stored has a body.
        let body = Body::from(self.body.unwrap_or_default());
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        response
            .headers_mut()
            .extend(self.headers.into_iter().map(|(name, value)| (Some(name), value)));
        response
    }
}

/// The body to its end, or its start and what follows, as soon as the start is longer than `limit`.
async fn read(mut body: Body, limit: usize) -> Result<(Bytes, Option<Body>), axum::Error> {
    let mut start = Vec::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            start.extend_from_slice(&data);
        }
        if start.len() > limit {
            return Ok((start.into(), Some(body)));
        }
    }
    Ok((start.into(), None))
}

impl Serialize for Answer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let body = self.body.as_ref().map_err(S::Error::custom)?;
        let text = |(name, value): &(HeaderName, HeaderValue)| {
            let value = value.as_bytes().iter().copied().map(char::from).collect();
            (name.to_string(), value)
        };
        let stored = Stored {
            status: self.status.as_u16(),
            headers: self.headers.iter().map(text).collect(),
            body: match str::from_utf8(body) {
                Ok(text) => StoredBody::Text(text.to_owned()),
                Err(_) => StoredBody::Base64(BASE64_STANDARD.encode(body)),
            },
        };
        stored.serialize(serializer)
    }
}

impl TryFrom<Stored> for Answer {
    type Error = &'static str;

    fn try_from(stored: Stored) -> Result<Self, Self::Error> {
        let header = |(name, value): (String, String)| {
            let bytes: Result<Vec<u8>, _> = value.chars().map(u8::try_from).collect();
            let value = HeaderValue::from_bytes(&bytes.ok()?).ok()?;
            Some((name.parse().ok()?, value))
        };
        let headers: Option<Vec<_>> = stored.headers.into_iter().map(header).collect();
        let body = match stored.body {
            StoredBody::Text(text) => text.into(),
            StoredBody::Base64(text) => BASE64_STANDARD.decode(text).map_err(|_| "no base64")?.into(),
        };
        Ok(Self {
            status: StatusCode::from_u16(stored.status).map_err(|_| "no status")?,
            headers: headers.ok_or("no header")?,
            body: Ok(body),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(body: &'static [u8]) -> (Answer, String) {
        let latin = HeaderValue::from_bytes(b"caf\xe9").unwrap();
        let answer = Answer {
            status: StatusCode::CREATED,
            headers: vec![(header::LOCATION, latin)],
            body: Ok(Bytes::from_static(body)),
        };
        let json = serde_json::to_string(&answer).unwrap();
        assert_eq!(serde_json::from_str::<Answer>(&json).unwrap(), answer);
        (answer, json)
    }

    /// Later versions must read a stored answer.
    #[test]
    fn stored_answers_stay_what_they_are() {
        let (_, text) = stored(b"{}\n\0");
        assert_eq!(
            text,
            r#"{"status":201,"headers":[["location","café"]],"text":"{}\n\u0000"}"#
        );
        let (_, bytes) = stored(b"\xff\x00");
        assert_eq!(
            bytes,
            r#"{"status":201,"headers":[["location","café"]],"base64":"/wA="}"#
        );
    }

    #[test]
    fn what_is_no_answer_does_not_decode() {
        for bad in [
            r#"{"status":1,"headers":[],"text":""}"#,
            r#"{"status":200,"headers":[["a b","c"]],"text":""}"#,
            r#"{"status":200,"headers":[["a","\n"]],"text":""}"#,
            r#"{"status":200,"headers":[["a","€"]],"text":""}"#,
            r#"{"status":200,"headers":[],"base64":"?"}"#,
            r#"{"status":200,"headers":[]}"#,
        ] {
            assert!(serde_json::from_str::<Answer>(bad).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_body_that_is_too_long_reaches_its_caller_and_is_not_kept() {
        let length = RunOptions::MAX_RESULT + 1;
        let (answer, response) = Answer::of(vec![b'x'; length].into_response(), &REPLAYED)
            .await
            .unwrap();
        let error = serde_json::to_string(&answer).unwrap_err();
        assert_eq!(error.to_string(), "its body has more than 4194304 bytes");
        let whole = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(whole.len(), length);
    }
}
