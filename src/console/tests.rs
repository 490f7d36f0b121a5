//! The console as a browser meets it, over a node's routes with calls that a test answers.
#![allow(clippy::unwrap_used, reason = "the lint knows test functions alone, and this is what they share")]

use std::{fs, sync::Arc};

use axum::{Router, body::Body};
use http::{Request, Response, StatusCode, header};
use parking_lot::Mutex;
use tower::ServiceExt;

use super::{Console, Options};
use crate::{
    auth::{Authenticator, Caller, Method},
    http::admin::Observed,
    id::{ClusterId, Fence, Key, Operation, Position, Principal, RecordId, Tenant, Time, Uuid},
    json::Json,
    records::record::StateWord,
    refusal::{Code, Refusal},
    service::{
        Calls, Changes, Seen,
        answer::{Outcome, *},
        request::*,
    },
};

const TOKEN: &str = "the-token-of-somebody-at-night";
const SECOND: &str = "the-token-of-somebody-else-then";
const READER: &str = "the-token-of-whoever-only-claims";
const NASTY: &str = "<img src=x onerror=alert(1)>\"'&";

/// Answers what it is asked, and remembers what was to be settled.
#[derive(Default)]
struct Fake {
    settled: Mutex<Vec<ResolveRequest>>,
}

fn record(with_outcome: bool) -> Record {
    let outcome = Outcome {
        status: 201,
        headers: Headers::default(),
        content_type: None,
        body: Some(Payload("the-outcome".into())),
        valid_until: None,
    };
    Record {
        id: RecordId {
            tenant: Tenant::parse("acme").unwrap(),
            principal: Principal::parse("").unwrap(),
            operation: Operation::parse("charge").unwrap(),
            key: Key::parse(NASTY).unwrap(),
        },
        state: StateWord::Indeterminate,
        version: Position(12),
        fence: Fence(7),
        attempt: 1,
        phase: None,
        attempt_id: Uuid([1; 16]),
        fingerprints: Vec::new(),
        lease_deadline: None,
        since: Time(1_000),
        reason: Some(Reason(NASTY.to_owned())),
        checkpoint: Some(Checkpoint {
            name: CheckpointName::parse("name", "sent".to_owned()).unwrap(),
            data: Payload("the-point".into()),
        }),
        labels: Labels::parse([("order".to_owned(), NASTY.to_owned())].into()).unwrap(),
        outcome: with_outcome.then_some(outcome),
        completed_at: None,
        replay_until: None,
        evidence_until: None,
        downstream_key: "sml_x".to_owned(),
        investigation: None,
        check_again_at: None,
        on_lapse: None,
        index: Position(12),
    }
}

fn none<T>() -> Result<T, Refusal> {
    Err(Refusal::new(Code::Internal, "not asked for in these tests"))
}

impl Calls for Fake {
    async fn claim(&self, _: &Caller, _: ClaimRequest) -> Result<ClaimAnswer, Refusal> {
        none()
    }
    async fn owner(&self, _: &Caller, _: OwnerRequest) -> Result<OwnerAnswer, Refusal> {
        none()
    }
    async fn get(&self, caller: &Caller, request: GetRequest) -> Result<Record, Refusal> {
        caller.authorize(Method::Get, request.record.tenant.as_ref(), &request.record.operation)?;
        Ok(record(request.with_outcome))
    }
    async fn batch(&self, _: &Caller, _: BatchRequest) -> Result<BatchAnswer, Refusal> {
        none()
    }
    async fn list(&self, caller: &Caller, request: ListRequest) -> Result<ListAnswer, Refusal> {
        caller.permit(Method::List)?;
        caller.tenant(request.tenant.as_ref())?;
        Ok(ListAnswer { records: vec![record(false)], cursor: None, index: Position(12) })
    }
    async fn investigate(&self, _: &Caller, _: InvestigateRequest) -> Result<Record, Refusal> {
        Ok(record(false))
    }
    async fn resolve(&self, caller: &Caller, request: ResolveRequest) -> Result<OwnerAnswer, Refusal> {
        caller.authorize(Method::Resolve, request.record.tenant.as_ref(), &request.record.operation)?;
        self.settled.lock().push(request);
        let (state, index) = (StateWord::Completed, Position(13));
        Ok(OwnerAnswer { state, phase: None, lease_ms: None, lease_deadline: None, version: Some(index), index })
    }
    async fn forget(&self, _: &Caller, _: ForgetRequest) -> Result<OwnerAnswer, Refusal> {
        none()
    }
    async fn history(&self, _: &Caller, _: HistoryRequest) -> Result<HistoryAnswer, Refusal> {
        let event = HistoryEvent {
            at: Time(1_000),
            index: Position(12),
            kind: "suspended",
            actor: Some(NASTY.to_owned()),
            fence: Some(Fence(7)),
            detail: Some(NASTY.to_owned()),
        };
        Ok(HistoryAnswer { events: vec![event], cursor: None, index: Position(12) })
    }
    async fn watch(&self, _: &Caller, _: WatchRequest) -> Result<Changes, Refusal> {
        none()
    }
    async fn get_policy(&self, _: &Caller, _: GetPolicyRequest) -> Result<PolicyAnswer, Refusal> {
        none()
    }
    async fn set_policy(&self, _: &Caller, _: SetPolicyRequest) -> Result<PolicyAnswer, Refusal> {
        none()
    }
    fn cluster_id(&self) -> Option<ClusterId> {
        None
    }
}

/// Whoever has signed in.
#[derive(Default)]
struct Watched {
    signed_in: Mutex<Vec<String>>,
}

impl Observed for Watched {
    async fn ready(&self) -> Result<(), String> {
        Ok(())
    }
    async fn status(&self) -> Json {
        Json::object([("role", "leader".into())])
    }
    fn admit_to_metrics(&self, _: &axum::extract::Request) -> Result<(), Refusal> {
        Ok(())
    }
    fn metrics(&self) -> String {
        "semel_waiters 2\n".to_owned()
    }
    fn time(&self) -> Time {
        Time(61_000)
    }
    fn tenants(&self) -> Vec<String> {
        vec!["acme".to_owned()]
    }
    fn signed_in(&self, caller: &Caller) {
        self.signed_in.lock().push(caller.actor(None).to_owned());
    }
}

struct Browser {
    router: Router,
    calls: Arc<Fake>,
    node: Arc<Watched>,
    _dir: tempfile::TempDir,
}

impl Browser {
    fn new(two_person: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens.toml");
        let token = |token: &str, permissions: &str| {
            format!(
                "[[token]]\ntoken = \"{token}\"\ntenant = \"acme\"\noperations = [\"*\"]\npermissions = [{permissions}]\n"
            )
        };
        let text = [
            token(TOKEN, "\"reconcile\""),
            token(SECOND, "\"reconcile\", \"read_outcomes\""),
            token(READER, "\"claim\""),
        ];
        fs::write(&path, text.concat()).unwrap();
        Self::of(Authenticator::token_file(&path).unwrap(), two_person, dir)
    }

    fn over(auth: Authenticator) -> Self {
        Self::of(auth, false, tempfile::tempdir().unwrap())
    }

    fn of(auth: Authenticator, two_person: bool, dir: tempfile::TempDir) -> Self {
        let (calls, node) = (Arc::new(Fake::default()), Arc::<Watched>::default());
        let console = Console::new(
            Arc::clone(&calls),
            Arc::clone(&node),
            Arc::new(auth),
            Arc::new(Seen::default()),
            vec!["127.0.0.1:7173".to_owned()],
            false,
            Options { two_person, ..Options::default() },
        );
        Self { router: console.routes(), calls, node, _dir: dir }
    }

    async fn send(&self, request: Request<Body>) -> (StatusCode, Response<Body>, String) {
        let (head, body) = self.router.clone().oneshot(request).await.unwrap().into_parts();
        let text = axum::body::to_bytes(body, 1 << 20).await.unwrap();
        let text = String::from_utf8(text.to_vec()).unwrap();
        (head.status, Response::from_parts(head, Body::empty()), text)
    }

    async fn get(&self, path: &str, cookie: &str) -> (StatusCode, String) {
        let request = Request::get(path).header("host", "127.0.0.1:7173").header("cookie", cookie);
        let (status, _, text) = self.send(request.body(Body::empty()).unwrap()).await;
        (status, text)
    }

    async fn post(&self, path: &str, cookie: &str, origin: &str, form: &str) -> (StatusCode, Response<Body>, String) {
        let request = Request::post(path)
            .header("host", "127.0.0.1:7173")
            .header("origin", origin)
            .header("cookie", cookie)
            .header("content-type", "application/x-www-form-urlencoded");
        self.send(request.body(Body::from(form.to_owned())).unwrap()).await
    }

    async fn sign_in(&self, token: &str) -> String {
        let (status, response, _) =
            self.post("/console/session", "", "http://127.0.0.1:7173", &format!("token={token}")).await;
        assert_eq!(status, StatusCode::SEE_OTHER);
        let cookie = response.headers()[header::SET_COOKIE].to_str().unwrap();
        assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"));
        cookie.split(';').next().unwrap().to_owned()
    }
}

fn csrf_of(page: &str) -> String {
    let at = page.find("name=csrf value=\"").unwrap() + "name=csrf value=\"".len();
    page[at..].split('"').next().unwrap().to_owned()
}

fn query() -> String {
    let key: String = form_urlencoded::byte_serialize(NASTY.as_bytes()).collect();
    format!("tenant=acme&principal=&operation=charge&key={key}")
}

const OWN: &str = "http://127.0.0.1:7173";

#[tokio::test]
async fn whoever_has_not_signed_in_sees_nothing() {
    let browser = Browser::new(false);
    for path in ["/console/queue", "/console/record?key=a", "/console/events", "/console/live", "/console/nodes"] {
        let (status, text) = browser.get(path, "").await;
        assert_eq!((status, text.as_str()), (StatusCode::SEE_OTHER, ""), "{path}");
    }
    let (status, response, text) = browser.post("/console/session", "", OWN, "token=another-token-of-nobody").await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert!(response.headers().get(header::SET_COOKIE).is_none() && !text.contains("another-token-of-nobody"));
    // Who has is told to the audit, and nobody else.
    assert!(browser.node.signed_in.lock().is_empty());
    let cookie = browser.sign_in(TOKEN).await;
    browser.get("/console/queue", &cookie).await;
    assert_eq!(*browser.node.signed_in.lock(), ["file:1"]);
}

#[tokio::test]
async fn a_page_of_another_origin_can_do_nothing() {
    let browser = Browser::new(false);
    let cookie = browser.sign_in(TOKEN).await;
    let (_, page) = browser.get(&format!("/console/record?{}", query()), &cookie).await;
    let form = format!("{}&version=12&verdict=no_effect&evidence=asked&csrf={}", query(), csrf_of(&page));
    for origin in ["http://evil.example", "null", "https://127.0.0.1:7173", "http://127.0.0.1:7174"] {
        assert_eq!(browser.post("/console/resolve", &cookie, origin, &form).await.0, StatusCode::FORBIDDEN, "{origin}");
        let token = format!("token={TOKEN}");
        assert_eq!(browser.post("/console/session", "", origin, &token).await.0, StatusCode::FORBIDDEN, "{origin}");
    }
    let without = form.replace(&csrf_of(&page), "AAAA");
    assert_eq!(browser.post("/console/resolve", &cookie, OWN, &without).await.0, StatusCode::FORBIDDEN);
    let other = browser.sign_in(SECOND).await;
    assert_eq!(
        browser.post("/console/resolve", &other, OWN, &form).await.0,
        StatusCode::FORBIDDEN,
        "another session's"
    );
    assert!(browser.calls.settled.lock().is_empty());
    assert_eq!(browser.post("/console/resolve", &cookie, OWN, &form).await.0, StatusCode::SEE_OTHER);
    assert_eq!(browser.calls.settled.lock().len(), 1);
    let request = Request::get("/console/queue").header("host", "evil.example").header("cookie", &cookie);
    assert_eq!(browser.send(request.body(Body::empty()).unwrap()).await.0, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn nothing_of_a_callers_becomes_markup_and_no_page_can_be_framed() {
    let browser = Browser::new(false);
    let cookie = browser.sign_in(TOKEN).await;
    for path in ["/console/queue".to_owned(), format!("/console/record?{}", query())] {
        let request = Request::get(&path).header("host", "127.0.0.1:7173").header("cookie", &cookie);
        let (status, response, text) = browser.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!(status, StatusCode::OK, "{path}: {text}");
        assert!(
            !text.contains("<img") && text.contains("&lt;img src=x onerror=alert(1)&gt;&quot;&#39;&amp;"),
            "{path}"
        );
        let policy = response.headers()["content-security-policy"].to_str().unwrap();
        for part in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "form-action 'self'"] {
            assert!(policy.contains(part), "{policy}");
        }
        assert_eq!(response.headers()["cache-control"], "no-store");
        assert!(!text.contains("style=") && !text.contains("onclick"), "nothing inline: the policy forbids it");
    }
}

#[tokio::test]
async fn contents_are_for_those_who_may_read_outcomes() {
    let browser = Browser::new(false);
    let path = format!("/console/record?{}", query());
    let (_, text) = browser.get(&path, &browser.sign_in(TOKEN).await).await;
    assert!(!text.contains("the-outcome") && !text.contains("the-point") && text.contains("9 bytes"));
    let (_, text) = browser.get(&path, &browser.sign_in(SECOND).await).await;
    assert!(text.contains("the-outcome") && text.contains("the-point"));
    let (status, text) = browser.get(&path, &browser.sign_in(READER).await).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert!(!text.contains("onerror"));
}

#[tokio::test]
async fn a_verdict_is_what_the_form_says_and_needs_evidence() {
    let browser = Browser::new(false);
    let cookie = browser.sign_in(TOKEN).await;
    let (_, page) = browser.get(&format!("/console/record?{}", query()), &cookie).await;
    let form = |rest: &str| format!("{}&version=12&csrf={}&{rest}", query(), csrf_of(&page));
    for bad in [
        "verdict=no_effect",
        "verdict=no_effect&evidence=+",
        "evidence=x",
        "verdict=completed&status=x&evidence=y",
        "verdict=completed&body_is_base64=1&body=*&evidence=y",
    ] {
        assert_eq!(
            browser.post("/console/resolve", &cookie, OWN, &form(bad)).await.0,
            StatusCode::BAD_REQUEST,
            "{bad}"
        );
    }
    let good = "verdict=completed&status=201&content_type=text%2Fplain&body=AAH%2F&body_is_base64=1&evidence=it+says+so\
                &request_id=4edac51d-3087-4c3d-9776-56b50434d637";
    assert_eq!(browser.post("/console/resolve", &cookie, OWN, &form(good)).await.0, StatusCode::SEE_OTHER);
    let later = "verdict=unknown&minutes=5&evidence=no+answer+yet";
    assert_eq!(browser.post("/console/resolve", &cookie, OWN, &form(later)).await.0, StatusCode::SEE_OTHER);
    let settled = browser.calls.settled.lock();
    let Verdict::Completed(outcome) = &settled[0].verdict else { panic!("{:?}", settled[0]) };
    assert_eq!((outcome.status, &outcome.body.0[..]), (201, &[0, 1, 255][..]));
    assert_eq!(settled[0].evidence.as_str(), "it says so");
    assert_eq!(settled[0].version, Position(12));
    assert_eq!(settled[0].request_id, Uuid::parse_hyphenated("4edac51d-3087-4c3d-9776-56b50434d637"));
    assert_eq!(settled[1].verdict, Verdict::Unknown { check_again_at: Time(361_000) });
}

#[tokio::test]
async fn with_two_persons_nobody_settles_alone() {
    let browser = Browser::new(true);
    let (one, two) = (browser.sign_in(TOKEN).await, browser.sign_in(SECOND).await);
    let path = format!("/console/record?{}", query());
    let form = async |cookie: &str, rest: &str| {
        let (_, page) = browser.get(&path, cookie).await;
        let form = format!("{}&version=12&csrf={}&{rest}", query(), csrf_of(&page));
        browser.post("/console/resolve", cookie, OWN, &form).await.0
    };
    assert_eq!(form(&two, "verdict=confirm").await, StatusCode::CONFLICT, "there is nothing to confirm");
    assert_eq!(form(&one, "verdict=no_effect&evidence=asked").await, StatusCode::SEE_OTHER);
    assert_eq!(form(&one, "verdict=confirm").await, StatusCode::CONFLICT, "by the same person");
    assert!(browser.calls.settled.lock().is_empty());
    assert!(!browser.get(&path, &one).await.1.contains("value=confirm"));
    assert!(browser.get(&path, &two).await.1.contains("value=confirm"));
    assert_eq!(form(&two, "verdict=confirm").await, StatusCode::SEE_OTHER);
    let settled = browser.calls.settled.lock();
    assert_eq!(settled[0].evidence.as_str(), "asked (found by file:1) (confirmed by file:2)");
    assert_eq!(settled[0].verdict, Verdict::NoEffect);
}

#[tokio::test]
async fn whoever_signs_out_is_out() {
    let browser = Browser::new(false);
    let cookie = browser.sign_in(TOKEN).await;
    let (_, page) = browser.get("/console/queue", &cookie).await;
    let form = format!("csrf={}", csrf_of(&page));
    // Both ways want the word of a page of the session's own.
    let sent = async |method: &str, kind: Option<&str>, body: &str| {
        let path = if method == "DELETE" { "/console/session" } else { "/console/sign-out" };
        let request = Request::builder().method(method).uri(path).header("host", "127.0.0.1:7173");
        let request = request.header("origin", OWN).header("cookie", &cookie);
        let request = kind.into_iter().fold(request, |request, kind| request.header("content-type", kind));
        browser.send(request.body(Body::from(body.to_owned())).unwrap()).await.0
    };
    const FORM: Option<&str> = Some("application/x-www-form-urlencoded");
    for method in ["POST", "DELETE"] {
        for (kind, body) in [(None, ""), (FORM, ""), (FORM, "csrf=AAAA"), (Some("application/json"), &*form)] {
            assert_eq!(sent(method, kind, body).await, StatusCode::FORBIDDEN, "{method} {kind:?} {body}");
        }
        assert_eq!(browser.get("/console/queue", &cookie).await.0, StatusCode::OK, "{method}");
    }
    assert_eq!(sent("DELETE", FORM, &form).await, StatusCode::SEE_OTHER);
    assert_eq!(browser.get("/console/queue", &cookie).await.0, StatusCode::SEE_OTHER);
    let cookie = browser.sign_in(TOKEN).await;
    let (_, page) = browser.get("/console/queue", &cookie).await;
    let form = format!("csrf={}", csrf_of(&page));
    assert_eq!(browser.post("/console/sign-out", &cookie, OWN, &form).await.0, StatusCode::SEE_OTHER);
    assert_eq!(browser.get("/console/queue", &cookie).await.0, StatusCode::SEE_OTHER);
}

/// Whoever reaches an open node may do everything: no page of another origin is shown anything.
#[tokio::test]
async fn an_open_nodes_pages_are_for_no_other_origin() {
    let browser = Browser::over(Authenticator::open());
    for path in ["/console", "/console/sign-in", "/console/queue", "/console/live", "/console/style.css"] {
        for (origin, is_own) in
            [(None, true), (Some(OWN), true), (Some("http://evil.example"), false), (Some("null"), false)]
        {
            let request = Request::get(path).header("host", "127.0.0.1:7173");
            let request = origin.into_iter().fold(request, |request, origin| request.header("origin", origin));
            let (status, _, text) = browser.send(request.body(Body::empty()).unwrap()).await;
            assert_eq!(status != StatusCode::FORBIDDEN, is_own, "{path} {origin:?}: {status} {text}");
        }
    }
}
