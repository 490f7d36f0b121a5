//! Tokens of the log at both doors and at the operators' port of a real node: who may do what.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy, rt::TokioExecutor};
use tokio::time::{sleep, timeout};
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tonic::transport::Channel;

use crate::{
    auth::{
        Method, Permission, Permissions, TokenText,
        jwt::{Rules, issuer::Issuer},
        permission::Needs,
    },
    clock::{Clock, SystemClock},
    config::{Access, Config, Exposure, Overrides, Purpose, Source},
    json::Json,
    node::Node,
    proto::v1::{self, records_client::RecordsClient},
};

const WAIT: Duration = Duration::from_secs(30);

type Http = legacy::Client<legacy::connect::HttpConnector, Full<Bytes>>;

/// A node that knows nobody but the holder of its first token.
pub(super) struct Guarded {
    pub node: Node,
    pub first: String,
    http: Http,
    grpc: Http,
    directory: tempfile::TempDir,
}

impl Guarded {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self::changed(directory, |_| ()).await
    }

    /// With what this changes of the configuration.
    pub async fn with(change: impl FnOnce(&mut Config)) -> Self {
        Self::changed(tempfile::tempdir().unwrap(), change).await
    }

    async fn changed(directory: tempfile::TempDir, change: impl FnOnce(&mut Config)) -> Self {
        let first = TokenText::draw();
        let mut config = config(&directory, Some(first.clone()));
        change(&mut config);
        let node = Node::start(config).await.unwrap();
        let guarded = Self {
            node,
            first: first.reveal(),
            http: legacy::Client::builder(TokioExecutor::new()).build_http(),
            grpc: legacy::Client::builder(TokioExecutor::new()).http2_only(true).build_http(),
            directory,
        };
        guarded.ready().await;
        guarded
    }

    async fn ready(&self) {
        let ready = async {
            while self.ask(self.node.admin_listen(), "GET /readyz", None, "").await.0 != 200 {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(WAIT, ready).await.expect("the node becomes ready");
    }

    async fn ask(&self, to: SocketAddr, route: &str, token: Option<&str>, body: &str) -> (u16, Json) {
        let (verb, path) = route.split_once(' ').unwrap();
        let mut request = Request::builder().method(verb).uri(format!("http://{to}{path}"));
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(Full::from(body.to_owned())).unwrap();
        let (head, mut body) = self.http.request(request).await.unwrap().into_parts();
        if path == "/v1/watch" && head.status == StatusCode::OK {
            return (200, Json::Null);
        }
        let mut text = Vec::new();
        while let Some(Ok(frame)) = body.frame().await {
            text.extend_from_slice(frame.data_ref().map_or(&[][..], |bytes| bytes));
        }
        (head.status.as_u16(), Json::parse(&text).unwrap_or(Json::Null))
    }

    pub async fn post(&self, path: &str, token: &str, body: &str) -> (u16, Json) {
        self.ask(self.node.listen(), &format!("POST {path}"), Some(token), body).await
    }

    /// The status of an RPC with an empty message.
    async fn rpc(&self, path: &str, token: Option<&str>) -> u32 {
        let mut request = Request::builder()
            .method("POST")
            .uri(format!("http://{}{path}", self.node.listen()))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(Full::from(vec![0; 5])).unwrap();
        let (head, mut body) = self.grpc.request(request).await.unwrap().into_parts();
        let mut status = head.headers.get("grpc-status").cloned();
        // A stream that has begun to answer is let in.
        while status.is_none() {
            match timeout(Duration::from_millis(300), body.frame()).await {
                Ok(Some(Ok(frame))) => {
                    status = frame.trailers_ref().and_then(|trailers| trailers.get("grpc-status").cloned());
                }
                _ => return 0,
            }
        }
        status.unwrap().to_str().unwrap().parse().unwrap()
    }

    pub async fn create(&self, by: &str, body: &str) -> (u16, Json) {
        self.post("/v1/token/create", by, body).await
    }

    /// A new token of this tenant with these permissions.
    async fn token(&self, tenant: &str, permissions: &[Permission]) -> String {
        let words: Vec<String> = permissions.iter().map(|permission| format!("{:?}", permission.as_str())).collect();
        let body = format!(r#"{{"tenant":"{tenant}","operations":["*"],"permissions":[{}]}}"#, words.join(","));
        let (status, answer) = self.create(&self.first, &body).await;
        assert_eq!(status, 200, "{answer}");
        text(&answer, "token").to_owned()
    }
}

fn config(directory: &tempfile::TempDir, first_token: Option<TokenText>) -> Config {
    let data_dir = Some(directory.path().join("data").display().to_string());
    let source = Source::default().with(Overrides { data_dir, ..Overrides::default() });
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut config = source.check(Purpose::Dev, Exposure::default()).unwrap();
    // More bad credentials are shown here than anybody may in earnest.
    config.limits.authentication_failures_per_s = 1_000_000;
    let jwks_file = directory.path().join("jwks.json");
    std::fs::write(&jwks_file, Issuer::set(&[&issuer()])).unwrap();
    let claim = |name: &str| format!("semel_{name}");
    config.jwt = Some(Rules {
        jwks_file,
        issuer: "https://issuer.example".to_owned(),
        audience: "semel".to_owned(),
        tenant_claim: claim("tenant"),
        permissions_claim: claim("permissions"),
        operations_claim: claim("operations"),
        age_max: Duration::from_secs(3600),
    });
    Config { listen: any, peer_listen: any, admin_listen: any, access: Access::Closed, first_token, ..config }
}

fn issuer() -> Issuer {
    Issuer::new("one", 1)
}

/// A JSON Web Token of this tenant with these permissions, issued so many seconds from now.
fn jwt(tenant: &str, permissions: &[Permission], from_now_s: i64) -> String {
    let words: Vec<&str> = permissions.iter().map(|permission| permission.as_str()).collect();
    let issued = i64::try_from(SystemClock::default().wall().0 / 1000).unwrap() + from_now_s;
    let expires = issued + 300;
    issuer().token(&format!(
        r#"{{"iss":"https://issuer.example","aud":"semel","sub":"ann","iat":{issued},"exp":{expires},
        "semel_tenant":"{tenant}","semel_operations":["*"],"semel_permissions":{words:?}}}"#
    ))
}

pub(super) fn text<'a>(json: &'a Json, name: &str) -> &'a str {
    json.member(name).and_then(Json::as_str).unwrap_or_default()
}

fn id_of(token: &str) -> &str {
    &token["semel_".len().."semel_".len() + 16]
}

/// Whether the table allows a call to whoever has these permissions.
fn allowed(method: Method, permissions: &[Permission]) -> bool {
    match method.needs() {
        Needs::Nothing | Needs::Credential => true,
        Needs::AnyOf(needed) => Permissions::of(permissions).meets(needed),
        Needs::FirstContact => permissions.contains(&Permission::Cluster),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_by_every_credential() {
    use Permission::{Administer, Claim, Cluster, ReadOutcomes, Reconcile};
    let guarded = Guarded::start().await;
    let sets: [&[Permission]; 5] =
        [&[Claim], &[Reconcile], &[ReadOutcomes], &[Administer], &[Claim, Reconcile, Administer]];
    let mut good = vec![(guarded.first.clone(), &[Cluster][..])];
    for set in sets {
        good.push((guarded.token("acme", set).await, set));
        good.push((jwt("acme", set, 0), set));
    }
    let all = [Claim, Reconcile, ReadOutcomes, Administer];
    let revoked = guarded.token("acme", &all).await;
    let body = format!(r#"{{"token_id":"{}","reason":"test"}}"#, id_of(&revoked));
    let (status, answer) = guarded.post("/v1/token/revoke", &guarded.first, &body).await;
    assert!(status == 200 && !text(&answer, "revoked_at").is_empty(), "{answer}");
    let short = r#"{"tenant":"acme","operations":["*"],"permissions":["claim","reconcile","read_outcomes","administer"],"ttl_s":1}"#;
    let expired = text(&guarded.create(&guarded.first, short).await.1, "token").to_owned();
    let ended = async {
        while guarded.post("/v1/list", &expired, "{}").await.0 != 401 {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(WAIT, ended).await.expect("a token ends");
    // It is told as it is judged, also where nothing was applied since it ended.
    let (_, listed) = guarded.post("/v1/token/list", &guarded.first, r#"{"tenant":"acme"}"#).await;
    let Some(Json::Array(tokens)) = listed.member("tokens") else { panic!("{listed}") };
    let of_expired = tokens.iter().find(|token| text(token, "token_id") == id_of(&expired)).unwrap();
    assert_eq!(text(of_expired, "state"), "expired");
    let other_secret = TokenText::draw().reveal();
    let wrong = format!("{}{}", &good[1].0[..23], &other_secret[23..]);
    let (old_jwt, of_cluster) = (jwt("acme", &all, -331), jwt("acme", &[Claim, Cluster], 0));
    let forged = {
        let good = jwt("acme", &all, 0);
        let (signed, _) = good.rsplit_once('.').unwrap();
        format!("{signed}.{}", "A".repeat(86))
    };
    let bad = [None, Some("short"), Some(&*other_secret), Some(&*wrong), Some(&*revoked), Some(&*expired)];
    let bad = bad.into_iter().chain([&old_jwt, &of_cluster, &forged].map(|token| Some(token.as_str())));
    let bad: Vec<Option<&str>> = bad.collect();
    let other = guarded.token("globex", &all).await;

    let mut bodies = Vec::new();
    for method in Method::ALL.iter().copied().filter(|method| !method.route().is_empty()) {
        let route = method.route();
        let is_admin = route.contains("/v1/admin/")
            || matches!(method, Method::Status | Method::Metrics | Method::Alive | Method::Ready);
        let to = if is_admin { guarded.node.admin_listen() } else { guarded.node.listen() };
        if method.needs() == Needs::Nothing {
            assert_eq!(guarded.ask(to, route, None, "").await.0, 200, "{route}");
            continue;
        }
        // Pages are for whoever has signed in, by a cookie: they take no token. The console's own tests ask them.
        if route.contains(" /console") {
            continue;
        }
        // From this machine the first contact needs no credential.
        if method.needs() == Needs::FirstContact {
            continue;
        }
        for &credential in &bad {
            let (status, answer) = guarded.ask(to, route, credential, "{}").await;
            assert_eq!(status, 401, "{route} {credential:?} {answer}");
            bodies.push(answer.to_text());
        }
        for (token, permissions) in &good {
            let (status, answer) = guarded.ask(to, route, Some(token), "{}").await;
            let is_in = !matches!(status, 401 | 403);
            // A token of the cluster has no tenant: what needs one is refused to it, with the same words.
            let of_all = is_admin || route.contains("/token/") || method == Method::Audit;
            let is_asked_of_tenant = permissions.contains(&Cluster) && !of_all;
            if !is_asked_of_tenant {
                assert_eq!(is_in, allowed(method, permissions), "{route} {permissions:?} {status} {answer}");
            }
            assert!(status != 404 || text(&answer, "detail").contains("recorded"), "{route} {answer}");
        }
    }
    bodies.dedup();
    assert_eq!(bodies.len(), 1, "one body, whatever the reason: {bodies:?}");

    for method in Method::ALL.iter().copied().filter(|method| method.grpc().starts_with("/semel.")) {
        for &credential in &bad {
            assert_eq!(guarded.rpc(method.grpc(), credential).await, 16, "{} {credential:?}", method.grpc());
        }
        for (token, permissions) in good.iter().filter(|(_, permissions)| !permissions.contains(&Cluster)) {
            let status = guarded.rpc(method.grpc(), Some(token)).await;
            assert_ne!(status, 16, "{}", method.grpc());
            // An empty message names no record, and is refused for that where the caller is let in.
            assert_eq!(status != 7, allowed(method, permissions), "{} {permissions:?} {status}", method.grpc());
        }
    }
    // Another tenant, and one that there never was: the same answer, whatever may be done in one's own.
    let mut told = Vec::new();
    for tenant in ["acme", "never-opened"] {
        for (path, rest) in [
            ("/v1/claim", r#""request":1"#),
            ("/v1/complete", r#""fence":"1","outcome":{"status":1}"#),
            ("/v1/get", r#""with_outcome":true"#),
            ("/v1/history", r#""page_size":1"#),
            ("/v1/forget", r#""reason":"x""#),
        ] {
            let body = format!(r#"{{"record":{{"tenant":"{tenant}","operation":"op","key":"k"}},{rest}}}"#);
            told.push(guarded.post(path, &other, &body).await);
        }
        for (path, rest) in [
            ("/v1/list", ""),
            ("/v1/policy/get", ""),
            ("/v1/audit", ""),
            ("/v1/policy/set", r#","policy":{"replay_s":1}"#),
            ("/v1/token/list", ""),
            ("/v1/token/create", r#","operations":["*"],"permissions":["claim"]"#),
        ] {
            told.push(guarded.post(path, &other, &format!(r#"{{"tenant":"{tenant}"{rest}}}"#)).await);
        }
    }
    told.dedup();
    assert!(told.len() == 1 && told[0].0 == 403, "{told:?}");
    let body = format!(r#"{{"token_id":"{}","reason":"not mine"}}"#, id_of(&good[1].0));
    assert_eq!(guarded.post("/v1/token/revoke", &other, &body).await.0, 404, "another tenant's token is none");
    guarded.node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_json_web_token_has_a_name_in_the_history_and_ends_with_its_key() {
    use Permission::{Claim, Reconcile};
    let guarded = Guarded::start().await;
    let token = jwt("acme", &[Claim, Reconcile], 0);
    let record = r#""record":{"operation":"charge","key":"k"}"#;
    let (status, claim) = guarded.post("/v1/claim", &token, &format!("{{{record},\"request\":1}}")).await;
    assert_eq!((status, text(&claim, "answer")), (200, "new"), "{claim}");
    let suspend = format!(r#"{{{record},"fence":"{}","reason":"lost"}}"#, text(&claim, "fence"));
    assert_eq!(guarded.post("/v1/suspend", &token, &suspend).await.0, 200);
    let resolve = format!(
        r#"{{{record},"version":"{}","verdict":"no_effect","evidence":"looked","actor":"somebody else"}}"#,
        text(&guarded.post("/v1/get", &token, &format!("{{{record}}}")).await.1, "version")
    );
    let (status, answer) = guarded.post("/v1/resolve", &token, &resolve).await;
    assert_eq!(status, 200, "{answer}");
    let (_, history) = guarded.post("/v1/history", &token, &format!("{{{record}}}")).await;
    let history = history.to_text();
    assert_eq!(history.matches("\"actor\":\"jwt:ann\"").count(), 4, "{history}");
    assert!(!history.contains("\"actor\":\"somebody else\""), "{history}");

    // What is open ends too: the session at its next item, the watch by itself.
    let channel = Channel::from_shared(format!("http://{}", guarded.node.listen())).unwrap().connect_lazy();
    let mut records = RecordsClient::new(channel);
    let (items, frames) = tokio::sync::mpsc::channel(8);
    let item = |id| {
        let record = v1::RecordId { operation: "charge".into(), key: format!("session-{id}"), ..Default::default() };
        let claim = v1::ClaimRequest { record: Some(record), request: Some("1".into()), ..Default::default() };
        let item = Some(v1::Item { command: Some(v1::item::Command::Claim(claim)) });
        v1::SessionRequest { items: vec![v1::SessionItem { id, item }] }
    };
    items.send(item(1)).await.unwrap();
    let mut request = tonic::Request::new(ReceiverStream::new(frames));
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    let mut session = records.session(request).await.unwrap().into_inner();
    assert_eq!(session.message().await.unwrap().unwrap().items[0].id, 1);
    let mut request = tonic::Request::new(v1::WatchRequest::default());
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    let mut watch = records.watch_indeterminate(request).await.unwrap().into_inner();
    watch.next().await.unwrap().unwrap();

    std::fs::write(guarded.directory.path().join("jwks.json"), Issuer::set(&[&Issuer::new("two", 2)])).unwrap();
    guarded.node.reload().await;
    assert_eq!(guarded.post("/v1/list", &token, "{}").await.0, 401);
    items.send(item(2)).await.unwrap();
    let ended = timeout(WAIT, session.message()).await.expect("the session ends").unwrap_err();
    assert_eq!(ended.code(), tonic::Code::Unauthenticated);
    let ended = timeout(WAIT, watch.next()).await.expect("the watch ends").unwrap().unwrap_err();
    assert_eq!(ended.code(), tonic::Code::Unauthenticated);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_gives_more_than_they_have() {
    let guarded = Guarded::start().await;
    let body =
        r#"{"tenant":"acme","permissions":["claim","administer"],"operations":["POST /v1/*","ping"],"note":"boss"}"#;
    let (_, boss) = guarded.create(&guarded.first, body).await;
    let boss = text(&boss, "token").to_owned();
    for (body, status) in [
        (r#"{"permissions":["claim"],"operations":["POST /v1/charges"]}"#, 200),
        (r#"{"permissions":["claim","administer"],"operations":["POST /v1/*","ping"]}"#, 200),
        (r#"{"permissions":["claim"],"operations":["POST *"]}"#, 403),
        (r#"{"permissions":["claim"],"operations":["ping*"]}"#, 403),
        (r#"{"permissions":["claim"],"operations":["*"]}"#, 403),
        (r#"{"permissions":["claim"],"operations":[]}"#, 400),
        (r#"{"permissions":["claim"]}"#, 400),
        (r#"{"permissions":["reconcile"],"operations":["ping"]}"#, 403),
        (r#"{"tenant":"globex","permissions":["claim"],"operations":["ping"]}"#, 403),
        (r#"{"permissions":["cluster"],"operations":["ping"]}"#, 400),
        (r#"{"permissions":["all"],"operations":["ping"]}"#, 400),
        (r#"{"permissions":[],"operations":["ping"]}"#, 400),
        (r#"{"permissions":["claim"],"operations":["ping"],"ttl_s":31622401}"#, 400),
        (r#"{"permissions":["claim"],"operations":["ping"],"ttl_s":0}"#, 400),
        (r#"{"permissions":["claim"],"operations":["ping"],"token":"semel_short"}"#, 400),
    ] {
        let (found, answer) = guarded.create(&boss, body).await;
        assert_eq!(found, status, "{body} {answer}");
    }
    // The caller draws the token, and may ask twice.
    let own = TokenText::draw().reveal();
    let body = format!(r#"{{"permissions":["claim"],"operations":["ping"],"token":"{own}"}}"#);
    let (_, one) = guarded.create(&boss, &body).await;
    let (_, two) = guarded.create(&boss, &body).await;
    assert_eq!((text(&one, "token"), text(&one, "expires_at")), (own.as_str(), text(&two, "expires_at")));
    let wider = body.replace("ping", "POST /v1/*");
    assert_eq!(text(&guarded.create(&boss, &wider).await.1, "code"), "wrong_state");
    // Its scope holds: this operation, and no other.
    let claim = |op: &str| format!(r#"{{"record":{{"operation":"{op}","key":"k"}},"request":1}}"#);
    assert_eq!(guarded.post("/v1/claim", &own, &claim("ping")).await.0, 200);
    assert_eq!(guarded.post("/v1/claim", &own, &claim("pong")).await.0, 403);
    // Listed without secrets, page by page.
    let (_, first) = guarded.post("/v1/token/list", &boss, r#"{"page_size":2}"#).await;
    let cursor = text(&first, "cursor").to_owned();
    let (_, rest) = guarded.post("/v1/token/list", &boss, &format!(r#"{{"cursor":"{cursor}"}}"#)).await;
    let listed = first.to_text() + &rest.to_text();
    assert_eq!(listed.matches("\"token_id\"").count(), 4, "{listed}");
    assert!(listed.contains("boss") && listed.contains("\"active\"") && !listed.contains("\"token\""), "{listed}");
    assert!(!listed.contains(&own[23..]) && !listed.contains(&guarded.first[23..]), "{listed}");
    // Everything is there again after a restart.
    let Guarded { node, first, directory, .. } = guarded;
    node.stop().await;
    let node = Node::start(config(&directory, None)).await.unwrap();
    let http = legacy::Client::builder(TokioExecutor::new()).build_http();
    let grpc = legacy::Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    let guarded = Guarded { node, first, http, grpc, directory };
    guarded.ready().await;
    assert_eq!(guarded.post("/v1/claim", &own, &claim("ping")).await.0, 200);
    guarded.node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revocation_ends_what_is_open() {
    let guarded = Guarded::start().await;
    let token = guarded.token("acme", &[Permission::Claim, Permission::Reconcile]).await;
    let channel = Channel::from_shared(format!("http://{}", guarded.node.listen())).unwrap().connect_lazy();
    let mut records = RecordsClient::new(channel);
    let claim = |key: &str, wait_ms| v1::ClaimRequest {
        record: Some(v1::RecordId { tenant: None, principal: None, operation: "op".into(), key: key.into() }),
        request: Some("1".into()),
        wait_ms: Some(wait_ms),
        ..Default::default()
    };
    let (items, frames) = tokio::sync::mpsc::channel(8);
    let item = |id, key: &str| v1::SessionRequest {
        items: vec![v1::SessionItem {
            id,
            item: Some(v1::Item { command: Some(v1::item::Command::Claim(claim(key, 0))) }),
        }],
    };
    items.send(item(1, "a")).await.unwrap();
    let mut request = tonic::Request::new(ReceiverStream::new(frames));
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    let mut session = records.session(request).await.unwrap().into_inner();
    assert_eq!(session.message().await.unwrap().unwrap().items[0].id, 1);
    let mut request = tonic::Request::new(v1::WatchRequest::default());
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    let mut watch = records.watch_indeterminate(request).await.unwrap().into_inner();
    watch.next().await.unwrap().unwrap();
    let waiting = {
        let (http, to, token) = (guarded.http.clone(), guarded.node.listen(), token.clone());
        let body = r#"{"record":{"operation":"op","key":"a"},"request":1,"wait_ms":50000}"#;
        tokio::spawn(async move {
            let request =
                Request::post(format!("http://{to}/v1/claim")).header("authorization", format!("Bearer {token}"));
            http.request(request.body(Full::from(body)).unwrap()).await.unwrap().status()
        })
    };
    // It waits: the node says so.
    let waits = async {
        while guarded.node.calls().waiting() != 1 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(WAIT, waits).await.expect("a claim waits");
    let body = format!(r#"{{"token_id":"{}","reason":"lost"}}"#, id_of(&token));
    assert_eq!(guarded.post("/v1/token/revoke", &guarded.first, &body).await.0, 200);
    // Nothing that comes from now on is taken.
    items.send(item(2, "b")).await.unwrap();
    let ended = timeout(WAIT, session.message()).await.expect("the session ends").unwrap_err();
    assert_eq!(ended.code(), tonic::Code::Unauthenticated);
    let ended = timeout(WAIT, watch.next()).await.expect("the watch ends").unwrap().unwrap_err();
    assert_eq!(ended.code(), tonic::Code::Unauthenticated);
    assert_eq!(timeout(WAIT, waiting).await.expect("the waiting ends").unwrap(), StatusCode::UNAUTHORIZED);
    let again = guarded.token("acme", &[Permission::Reconcile]).await;
    let (_, listed) = guarded.post("/v1/list", &again, "{}").await;
    assert!(!listed.to_text().contains("\"b\""), "{listed}");
    guarded.node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_refused_and_who_signed_in_stand_in_the_audit() {
    let guarded = Guarded::start().await;
    let claimer = guarded.token("acme", &[Permission::Claim]).await;
    let revoked = guarded.token("acme", &[Permission::Reconcile]).await;
    let body = format!(r#"{{"token_id":"{}","reason":"lost"}}"#, id_of(&revoked));
    assert_eq!(guarded.post("/v1/token/revoke", &guarded.first, &body).await.0, 200);
    let nobodys = TokenText::draw().reveal();
    let wrong = format!("{}{}", &claimer[..23], &nobodys[23..]);
    for (token, times) in [(&revoked, 3), (&wrong, 2), (&nobodys, 1)] {
        for _ in 0..times {
            assert_eq!(guarded.post("/v1/list", token, "{}").await.0, 401);
        }
    }
    assert_eq!(guarded.ask(guarded.node.listen(), "POST /v1/list", None, "{}").await.0, 401);
    let form = Request::post(format!("http://{}/console/session", guarded.node.admin_listen()))
        .header("origin", format!("http://{}", guarded.node.admin_listen()))
        .header("content-type", "application/x-www-form-urlencoded")
        .body(Full::from(format!("token={claimer}")))
        .unwrap();
    assert_eq!(guarded.http.request(form).await.unwrap().status(), StatusCode::SEE_OTHER);

    let rows = async |kind: &str| {
        let (_, audit) = guarded.post("/v1/audit", &guarded.first, "{}").await;
        let Some(Json::Array(events)) = audit.member("events") else { panic!("{audit}") };
        events.iter().filter(|event| text(event, "kind") == kind).cloned().collect::<Vec<_>>()
    };
    guarded.node.tell_refusals().await;
    // Nobody was since: no second row.
    guarded.node.tell_refusals().await;
    let refused = rows("authentication_refused").await;
    let [row] = refused.as_slice() else { panic!("{refused:?}") };
    let told = row.member("detail").map(|detail| text(detail, "text").to_owned()).unwrap_or_default();
    for (reason, id, count) in [
        ("missing", "null".to_owned(), 1),
        ("revoked", format!("{:?}", id_of(&revoked)), 3),
        ("wrong_secret", format!("{:?}", id_of(&claimer)), 2),
        ("unknown", format!("{:?}", id_of(&nobodys)), 1),
    ] {
        let group = format!(r#"{{"reason":"{reason}","token_id":{id},"count":"{count}"}}"#);
        assert!(told.contains(&group), "{group} in {told}");
    }
    assert_eq!((text(row, "actor"), told.contains(&nobodys[23..])), ("node:1", false), "{told}");
    let signed_in = async {
        loop {
            if let [row] = rows("console_signed_in").await.as_slice() {
                return row.clone();
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    let told = timeout(WAIT, signed_in).await.expect("a row comes");
    assert_eq!(text(&told, "actor"), format!("token:{}", id_of(&claimer)));
    assert!(told.to_text().contains("acme"), "{told}");
    guarded.node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_tell_tenants_to_the_cluster_alone() {
    let guarded = Guarded::with(|config| config.tenant_labels = true).await;
    let acme = guarded.token("acme", &[Permission::Claim]).await;
    let claim = r#"{"record":{"operation":"op","key":"k"},"request":1}"#;
    assert_eq!(guarded.post("/v1/claim", &acme, claim).await.0, 200);
    for (token, status) in [(None, 401), (Some(&acme), 403)] {
        let to = guarded.node.admin_listen();
        assert_eq!(guarded.ask(to, "GET /metrics", token.map(String::as_str), "").await.0, status);
    }
    let request = Request::get(format!("http://{}/metrics", guarded.node.admin_listen()))
        .header("authorization", format!("Bearer {}", guarded.first))
        .body(Full::from(Bytes::new()));
    let body = guarded.http.request(request.unwrap()).await.unwrap().into_body().collect().await.unwrap().to_bytes();
    let told = String::from_utf8(body.to_vec()).unwrap();
    // Two were refused at the head, and one of them had a good credential.
    let tells = |line: &str| assert!(told.lines().any(|own| own == line), "{line}: {told}");
    tells("semel_authentication_failures_total 1");
    tells("semel_tenant_records{tenant=\"acme\"} 1");
    tells("semel_tenant_in_progress{tenant=\"acme\"} 1");
    guarded.node.stop().await;
}
