//! The frame of all pages.

use std::fmt::Display;

use axum::body::Body;
use http::{HeaderValue, Response, StatusCode, header};

use super::{html::Html, session::Session};
use crate::{
    auth::{Caller, Method},
    id::Time,
    refusal::{Code, Refusal},
};

/// The pages, their names, and what they need.
const PAGES: [(&str, &str, Method); 5] = [
    ("/console/queue", "Queue", Method::List),
    ("/console/events", "Events", Method::Audit),
    ("/console/live", "Live", Method::ConsoleLive),
    ("/console/nodes", "Nodes", Method::ConsoleNodes),
    ("/console/tenants", "Tenants", Method::GetPolicy),
];

/// A page in the making.
pub(super) struct Page {
    title: &'static str,
    nav: Html,
    main: Html,
    refresh_s: Option<u32>,
    csrf: String,
}

impl Page {
    /// A page for whoever is signed in. `path`: where it lies.
    pub fn new(session: &Session, path: &str) -> Self {
        let mut nav = Html::default();
        nav.raw("<nav aria-label=Pages><ul>");
        for (to, name, method) in PAGES {
            if session.caller.permit(method).is_ok() {
                nav.raw("<li><a href=\"").text(to).raw("\"");
                if to == path {
                    nav.raw(" aria-current=page");
                }
                nav.raw(">").text(name).raw("</a></li>");
            }
        }
        nav.raw("</ul><form method=post action=/console/sign-out>").with(&csrf_field(&session.csrf));
        nav.element(
            "<span class=who>",
            who(&session.caller),
            "</span><button class=quiet>Sign out</button></form></nav>",
        );
        Self { title: "Semel", nav, main: Html::default(), refresh_s: None, csrf: session.csrf.to_string() }
    }

    /// A page for anybody.
    pub fn outside() -> Self {
        Self { title: "Semel", nav: Html::default(), main: Html::default(), refresh_s: None, csrf: String::new() }
    }

    /// What the page is called.
    pub fn heading(&mut self, text: &'static str) {
        self.title = text;
        self.main.element("<h1>", text, "</h1>");
    }

    /// Has the browser get it again, again and again.
    pub fn refresh(&mut self, every_s: u32) {
        self.refresh_s = Some(every_s);
    }

    /// Where its content goes.
    pub fn html(&mut self) -> &mut Html {
        &mut self.main
    }

    /// The field that every form carries.
    pub fn csrf(&self) -> Html {
        csrf_field(&self.csrf)
    }

    /// Says what was refused, and what that means.
    pub fn refusal(&mut self, refusal: &Refusal) {
        let name = crate::problems::name(refusal.code);
        self.main
            .raw("<div class=\"card refused\" role=alert><p><strong>")
            .text(refusal.code.title())
            .raw("</strong> <a href=\"/problems/");
        self.main.text(name).raw("\">").text(refusal.code.as_str()).raw("</a></p>");
        self.main.element("<p>", &refusal.detail, "</p>");
        if refusal.code == Code::ResultUnknown {
            self.main.raw("<p>Look at the record again before you do anything else.</p>");
        }
        self.main.raw("</div>");
    }

    /// All of it.
    pub fn response(self, status: StatusCode) -> Response<Body> {
        let mut html = Html::default();
        html.raw("<!doctype html><html lang=en><head><meta charset=utf-8>")
            .raw("<meta name=viewport content=\"width=device-width, initial-scale=1\">")
            .raw("<meta name=color-scheme content=\"light dark\">");
        if let Some(every_s) = self.refresh_s {
            html.raw("<meta http-equiv=refresh content=\"").text(every_s).raw("\">");
        }
        html.element("<title>", self.title, " · Semel</title>")
            .raw("<link rel=stylesheet href=/console/style.css><script src=/console/script.js defer></script></head><body>")
            .raw("<a class=skip href=\"#main\">To the content</a><header><a class=name href=/console>Semel</a>")
            .with(&self.nav)
            .raw("</header><main id=main tabindex=-1>")
            .with(&self.main)
            .raw("</main></body></html>");
        let mut response = Response::new(Body::from(html.into_string()));
        *response.status_mut() = status;
        let kind = HeaderValue::from_static("text/html; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    }
}

fn csrf_field(csrf: &str) -> Html {
    let mut html = Html::default();
    html.raw("<input type=hidden name=csrf value=\"").text(csrf).raw("\">");
    html
}

fn who(caller: &Caller) -> impl Display {
    caller.actor(None).to_owned()
}

/// A moment, for people: the exact one is behind it.
pub(super) fn moment(html: &mut Html, at: Time) {
    let text = crate::http::moment_text(at);
    let short = text.get(..19).unwrap_or(&text).replace('T', " ");
    html.raw("<time datetime=\"").text(&text).raw("\">").text(short).raw("</time>");
}

/// A span of time in its largest two units.
pub(super) fn span(ms: u64) -> String {
    let s = ms / 1000;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        3600..86_400 => format!("{} h {} min", s / 3600, s % 3600 / 60),
        _ => format!("{} d {} h", s / 86_400, s % 86_400 / 3600),
    }
}
