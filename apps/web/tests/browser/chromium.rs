//! A headless Chromium, driven through the two pipes of its debugging protocol: JSON messages that end with a
//! NUL.
//!
//! No port, no other program and no library between the test and the browser.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::{Instant, sleep, timeout};

/// A browser on a busy machine answers within this time.
const LIMIT: Duration = Duration::from_mins(1);

/// The protocol is spoken on the descriptors 3 and 4.
const PIPES: &str = "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1";

/// One tab of a browser of its own. The browser ends with it.
pub(crate) struct Tab {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    session: Option<String>,
    calls: u64,
    /// The faults that the browser has reported: exceptions, and loads that the policy has blocked.
    faults: Vec<Value>,
    _browser: Child,
    _profile: TempDir,
}

impl Tab {
    /// Starts the program, without its sandbox: tests run as root, and open no page but their own.
    pub(crate) async fn open(program: &Path) -> Self {
        let profile = tempfile::tempdir().unwrap();
        let mut browser = Command::new("sh")
            .args(["-c", PIPES])
            .arg(program)
            .args([
                "--headless=new",
                "--no-sandbox",
                "--remote-debugging-pipe",
                "--disable-gpu",
            ])
            .args([
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--hide-scrollbars",
                "--lang=en",
            ])
            .args([
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut tab = Self {
            input: browser.stdin.take().unwrap(),
            output: BufReader::new(browser.stdout.take().unwrap()),
            session: None,
            calls: 0,
            faults: Vec::new(),
            _browser: browser,
            _profile: profile,
        };
        let target = tab
            .call("Target.createTarget", json!({"url": "about:blank"}))
            .await;
        let target = json!({"targetId": target["targetId"], "flatten": true});
        let session = tab.call("Target.attachToTarget", target).await;
        tab.session = session["sessionId"].as_str().map(str::to_owned);
        for part in ["Page.enable", "Runtime.enable", "Log.enable"] {
            tab.call(part, json!({})).await;
        }
        tab
    }

    /// Calls a method of the protocol. Its result.
    pub(crate) async fn call(&mut self, method: &str, parameters: Value) -> Value {
        let answer = self.ask(method, parameters).await;
        answer.unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// Calls a method that may fail, as one that a new page interrupts.
    async fn ask(&mut self, method: &str, parameters: Value) -> Result<Value, Value> {
        self.calls += 1;
        let mut message = json!({"id": self.calls, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.input.write_all(&bytes).await.unwrap();
        loop {
            let mut bytes = Vec::new();
            let read = timeout(LIMIT, self.output.read_until(0, &mut bytes)).await;
            assert_ne!(
                read.expect("the browser answers").unwrap(),
                0,
                "the browser has ended"
            );
            bytes.pop();
            let told: Value = serde_json::from_slice(&bytes).unwrap();
            if told["id"] == self.calls {
                return if told["error"].is_null() {
                    Ok(told["result"].clone())
                } else {
                    Err(told["error"].clone())
                };
            }
            let is_fault = told["method"] == "Runtime.exceptionThrown"
                || (told["method"] == "Log.entryAdded" && told["params"]["entry"]["level"] == "error");
            if is_fault {
                self.faults.push(told["params"].clone());
            }
        }
    }

    /// The value of a JavaScript expression in the page.
    pub(crate) async fn value(&mut self, expression: &str) -> Value {
        let asked = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.call("Runtime.evaluate", asked).await;
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true. Between two pages there is none to ask.
    pub(crate) async fn until(&mut self, expression: &str) {
        let since = Instant::now();
        loop {
            let asked = json!({"expression": expression, "returnByValue": true});
            let answer = self.ask("Runtime.evaluate", asked).await;
            if answer.is_ok_and(|answer| answer["result"]["value"] == true) {
                return;
            }
            if since.elapsed() > LIMIT {
                let page = self
                    .value("location.href + '\\n' + document.body.innerText")
                    .await;
                panic!("still not {expression}:\n{}", page.as_str().unwrap_or_default());
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Opens a page, and waits until all of it is there.
    pub(crate) async fn visit(&mut self, url: &str) {
        self.call("Page.navigate", json!({"url": url})).await;
        let url = json!(url);
        self.until(&format!(
            "location.href === {url} && document.readyState === 'complete'"
        ))
        .await;
    }

    /// Follows a link or presses a button, and waits for the page whose address contains `address`.
    pub(crate) async fn press(&mut self, selector: &str, address: &str) {
        let click = format!("document.querySelector({}).click()", json!(selector));
        // The next page may be there before the answer.
        let _ = self.ask("Runtime.evaluate", json!({"expression": click})).await;
        let address = json!(address);
        self.until(&format!(
            "location.href.includes({address}) && document.readyState === 'complete'"
        ))
        .await;
    }

    /// Waits until the page shows a text.
    pub(crate) async fn until_shown(&mut self, text: &str) {
        self.until(&format!("document.body.innerText.includes({})", json!(text)))
            .await;
    }

    pub(crate) async fn resize(&mut self, width: u32, height: u32) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call("Emulation.setDeviceMetricsOverride", size).await;
    }

    pub(crate) async fn prefer(&mut self, scheme: &str) {
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", features).await;
    }

    /// Fails if a script failed, or the policy blocked something.
    pub(crate) fn assert_no_faults(&self) {
        assert!(self.faults.is_empty(), "{:#?}", self.faults);
    }
}
