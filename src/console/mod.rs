//! The console on the operators' port: pages that the node makes, for people who reconcile and who keep a cluster going.
//!
//! It calls what every client calls ([`Calls`]), as whoever has signed in: nothing is allowed here that the credential does
//! not allow there. Every page is whole without its script.
//!
//! In reading order: `html` how text becomes markup, and never the other way · `guard` which requests are a browser's own ·
//! `session` who has signed in · `page` the frame of all pages · `queue` what is indeterminate · `record` one record, and
//! what can be done about it · `pending` verdicts that a second person must confirm · `events` conflicts and stale fences ·
//! `live` rates and latencies · `nodes`, `tenants`.

mod events;
mod form;
mod guard;
mod html;
mod live;
mod nodes;
mod page;
mod pending;
mod queue;
mod record;
mod session;
mod tenants;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    routing::{get, post},
};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};

use crate::{
    auth::{Authenticator, Caller, Method, Scope, caller::OPEN_TENANT},
    http::admin::Observed,
    id::Tenant,
    limits,
    refusal::{Code, Refusal},
    service::{Calls, Seen},
};
use form::Form;
use guard::Guard;
use page::Page;
use pending::Pending;
use session::{Session, Sessions};

/// How the console behaves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Names under which it is reached, beside loopback and the node's own addresses.
    pub hosts: Vec<String>,
    /// Whether a second person has to confirm a verdict.
    pub two_person: bool,
}

/// The console of a node.
pub struct Console<C, O> {
    calls: Arc<C>,
    node: Arc<O>,
    auth: Arc<Authenticator>,
    seen: Arc<Seen>,
    guard: Guard,
    sessions: Sessions,
    pending: Pending,
    samples: live::Samples,
    two_person: bool,
}

type Answer = Result<Response<Body>, Refusal>;

impl<C: Calls, O: Observed> Console<C, O> {
    /// A console over these calls. `own`: the addresses under which the operators' port is known; it is encrypted or not.
    pub fn new(
        calls: Arc<C>,
        node: Arc<O>,
        auth: Arc<Authenticator>,
        seen: Arc<Seen>,
        own: Vec<String>,
        is_encrypted: bool,
        options: Options,
    ) -> Arc<Self> {
        let Options { hosts, two_person } = options;
        Arc::new(Self {
            calls,
            node,
            auth,
            seen,
            guard: Guard::new(own, hosts, is_encrypted),
            sessions: Sessions::new(is_encrypted),
            pending: Pending::default(),
            samples: live::Samples::default(),
            two_person,
        })
    }

    /// Its routes, all under `/console`.
    pub fn routes(self: Arc<Self>) -> Router {
        Router::new()
            .route("/console", get(async || to("/console/queue")))
            .route("/console/style.css", get(async || file("text/css; charset=utf-8", include_str!("style.css"))))
            .route("/console/script.js", get(async || file("text/javascript", include_str!("script.js"))))
            .route("/console/sign-in", get(Self::sign_in_page))
            .route("/console/session", post(Self::sign_in).delete(Self::sign_out))
            .route("/console/sign-out", post(Self::sign_out))
            .route("/console/queue", get(Self::queue_page))
            .route("/console/record", get(Self::record_page))
            .route("/console/resolve", post(Self::resolve))
            .route("/console/investigate", post(Self::investigate))
            .route("/console/events", get(Self::events_page))
            .route("/console/live", get(Self::live_page))
            .route("/console/nodes", get(Self::nodes_page))
            .route("/console/tenants", get(Self::tenants_page))
            .layer(axum::middleware::from_fn_with_state(Arc::clone(&self), Self::guarded))
            .layer(axum::middleware::from_fn(dressed))
            .with_state(self)
    }

    /// Keeps other pages' requests away from an open node, its static files included. What changes anything is guarded where
    /// it is done, open or not.
    async fn guarded(State(this): State<Arc<Self>>, request: Request, next: axum::middleware::Next) -> Response<Body> {
        if this.auth.is_open()
            && request.method().is_safe()
            && let Err(refusal) = this.guard.check_open(request.uri(), request.headers())
        {
            return refused(None, &refusal);
        }
        next.run(request).await
    }

    /// Who asks, and in whose name. An open node signs everybody in.
    fn admit(&self, request: &Request) -> Result<Session, Refusal> {
        self.guard.check_host(request.uri(), request.headers())?;
        if let Some(session) = self.sessions.find(request.headers()) {
            let caller = self.auth.judge_again(&session.caller)?;
            return Ok(Session { caller: Arc::new(caller), ..session });
        }
        if self.auth.is_open() {
            return self.sessions.begin(Caller::open());
        }
        Err(crate::auth::caller::unauthenticated())
    }

    /// Answers a page, in the frame of all pages; a refusal is a page too, and whoever is not signed in is asked to.
    async fn shown(
        self: Arc<Self>,
        request: Request,
        build: impl AsyncFnOnce(&Arc<Self>, &Session, &Form, &mut Page) -> Result<(), Refusal>,
    ) -> Response<Body> {
        let session = match self.admit(&request) {
            Ok(session) => session,
            Err(refusal) if refusal.code == Code::Unauthenticated => return to("/console/sign-in"),
            Err(refusal) => return refused(None, &refusal),
        };
        let form = Form::of_query(request.uri());
        let mut page = Page::new(&session, request.uri().path());
        let mut response = match build(&self, &session, &form, &mut page).await {
            Ok(()) => page.response(StatusCode::OK),
            Err(refusal) => refused(Some(&session), &refusal),
        };
        session.keep(&mut response);
        response
    }

    /// Does what a form asks for, and goes where that leads.
    async fn done(
        self: Arc<Self>,
        request: Request,
        act: impl AsyncFnOnce(&Arc<Self>, &Session, &Form) -> Answer,
    ) -> Response<Body> {
        let admitted = self.guard.check_origin(request.uri(), request.headers()).and_then(|()| self.admit(&request));
        let session = match admitted {
            Ok(session) => session,
            Err(refusal) if refusal.code == Code::Unauthenticated => return to("/console/sign-in"),
            Err(refusal) => return refused(None, &refusal),
        };
        // What is no form carries no word of a page of ours.
        if !Form::is_sent(&request) {
            return refused(Some(&session), &crate::auth::caller::forbidden());
        }
        let form = match Form::read(request).await {
            Ok(form) => form,
            Err(refusal) => return refused(Some(&session), &refusal),
        };
        if !session.is_own(form.text("csrf")) {
            return refused(Some(&session), &crate::auth::caller::forbidden());
        }
        act(&self, &session, &form).await.unwrap_or_else(|refusal| refused(Some(&session), &refusal))
    }

    async fn sign_in_page(State(this): State<Arc<Self>>, request: Request) -> Response<Body> {
        if let Err(refusal) = this.guard.check_host(request.uri(), request.headers()) {
            return refused(None, &refusal);
        }
        if this.admit(&request).is_ok() {
            return to("/console/queue");
        }
        session::sign_in_page(None).response(StatusCode::OK)
    }

    async fn sign_in(State(this): State<Arc<Self>>, request: Request) -> Response<Body> {
        let checked = this.guard.check_origin(request.uri(), request.headers());
        if let Err(refusal) = checked {
            return refused(None, &refusal);
        }
        let begun = async {
            let known = request.extensions().clone();
            let form = Form::read(request).await?;
            let mut head = HeaderMap::new();
            let text = format!("Bearer {}", form.text("token").trim());
            let mut value = HeaderValue::from_str(&text).map_err(|_| crate::auth::caller::unauthenticated())?;
            value.set_sensitive(true);
            head.insert(header::AUTHORIZATION, value);
            let session = this.sessions.begin(this.auth.admit(&head, &known)?)?;
            this.node.signed_in(&session.caller);
            Ok::<_, Refusal>(session)
        };
        match begun.await {
            Ok(session) => {
                let mut response = to(home(&session.caller));
                session.keep(&mut response);
                response
            }
            Err(refusal) => {
                let status = StatusCode::from_u16(refusal.code.http()).unwrap_or(StatusCode::UNAUTHORIZED);
                session::sign_in_page(Some(&refusal)).response(status)
            }
        }
    }

    async fn sign_out(State(this): State<Arc<Self>>, request: Request) -> Response<Body> {
        let head = request.headers().clone();
        let ended = async |this: &Arc<Self>, _: &Session, _: &Form| {
            let mut response = to("/console/sign-in");
            this.sessions.end(&head, &mut response);
            Ok(response)
        };
        this.done(request, ended).await
    }

    async fn queue_page(State(this): State<Arc<Self>>, request: Request) -> Response<Body> {
        this.shown(request, async |this, session, form, page| this.queue(session, form, page).await).await
    }

    async fn record_page(State(this): State<Arc<Self>>, request: Request) -> Response<Body> {
        this.shown(request, async |this, session, form, page| this.record(session, form, page).await).await
    }

    async fn resolve(State(this): State<Arc<Self>>, request: Request) -> Response<Body> {
        this.done(request, async |this, session, form| this.settle(session, form).await).await
    }

    async fn investigate(State(this): State<Arc<Self>>, request: Request) -> Response<Body> {
        this.done(request, async |this, session, form| this.take_up(session, form).await).await
    }

    async fn events_page(State(this): State<Arc<Self>>, request: Request) -> Response<Body> {
        this.shown(request, async |this, session, form, page| this.events(session, form, page).await).await
    }

    async fn live_page(State(this): State<Arc<Self>>, request: Request) -> Response<Body> {
        this.shown(request, async |this, _, _, page| this.live(page)).await
    }

    async fn nodes_page(State(this): State<Arc<Self>>, request: Request) -> Response<Body> {
        this.shown(request, async |this, session, _, page| this.nodes(session, page).await).await
    }

    async fn tenants_page(State(this): State<Arc<Self>>, request: Request) -> Response<Body> {
        this.shown(request, async |this, session, form, page| this.tenants(session, form, page).await).await
    }

    /// The tenant that a page is about: the credential's own, or on an open node the one that is named.
    fn tenant(session: &Session, form: &Form) -> Result<Option<Tenant>, Refusal> {
        match session.caller.scope() {
            Scope::Tenant(own) => Ok(Some(own.clone())),
            Scope::Cluster => Ok(None),
            Scope::Open => {
                let named = form.given("tenant").unwrap_or(OPEN_TENANT);
                Tenant::parse(named).map(Some).map_err(|error| Refusal::invalid(format!("tenant: {error}")))
            }
        }
    }
}

/// Where a caller begins.
fn home(caller: &Caller) -> &'static str {
    if caller.permit(Method::List).is_ok() { "/console/queue" } else { "/console/live" }
}

fn refused(session: Option<&Session>, refusal: &Refusal) -> Response<Body> {
    let mut page = match session {
        Some(session) => Page::new(session, ""),
        None => Page::outside(),
    };
    page.refusal(refusal);
    page.response(StatusCode::from_u16(refusal.code.http()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR))
}

/// To another page, which is got.
fn to(path: &str) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    let path = HeaderValue::from_str(path).unwrap_or(HeaderValue::from_static("/console/queue"));
    response.headers_mut().insert(header::LOCATION, path);
    response
}

fn file(kind: &'static str, text: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// What every answer of the console carries: nothing but its own script and style, in no frame, kept nowhere.
async fn dressed(request: Request, next: axum::middleware::Next) -> Response<Body> {
    const FIELDS: [(&str, &str); 4] = [
        (
            "content-security-policy",
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; form-action 'self'; \
             frame-ancestors 'none'; base-uri 'none'",
        ),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-store"),
    ];
    let mut response = next.run(request).await;
    for (name, value) in FIELDS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

const _: () = assert!(limits::CONSOLE_FORM_BYTES_MAX <= limits::REQUEST_BYTES_MAX);
