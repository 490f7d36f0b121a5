//! A service whose orders are made once for each Idempotency-Key: an axum router behind the door's layer.
//!
//! ```text
//! semel dev                              in one terminal
//! cargo run --example orders             in another
//! curl -i -X POST -H 'Idempotency-Key: order-7' -d 'two pizzas' http://127.0.0.1:3000/orders      twice
//! ```
//!
//! `SEMEL_ENDPOINT` names the node (default `http://127.0.0.1:7171`), `SEMEL_TOKEN` a token where it wants one. The service
//! listens where `LISTEN` says (default `127.0.0.1:3000`).

use std::{
    env,
    sync::atomic::{AtomicUsize, Ordering},
};

use axum::{
    Router,
    http::{HeaderMap, StatusCode, header},
    response::IntoResponse,
    routing::post,
};
use semel::{
    Client,
    door::{
        Door, IdempotencyLayer, Settings, engine,
        route::{KeyRule, Pattern, Route, Routes},
    },
};

static ORDERS: AtomicUsize = AtomicUsize::new(0);

/// Makes an order. It doesn't know of keys: that it runs once for each is the layer's affair.
async fn make_order(headers: HeaderMap, what: String) -> impl IntoResponse {
    let number = ORDERS.fetch_add(1, Ordering::SeqCst) + 1;
    let fence = headers.get("semel-fence").and_then(|fence| fence.to_str().ok()).unwrap_or("none");
    println!("order {number}: {what} (fence {fence})");
    (StatusCode::CREATED, [(header::LOCATION, format!("/orders/{number}"))], format!("order {number}: {what}\n"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let variable = |name: &str, default: &str| env::var(name).unwrap_or_else(|_| default.to_owned());
    let mut store = engine::patience(Client::builder().endpoint(variable("SEMEL_ENDPOINT", "http://127.0.0.1:7171")));
    if let Ok(token) = env::var("SEMEL_TOKEN") {
        store = store.token(token);
    }
    let door = Door::new(store.connect_lazy()?, Settings::default());
    // Orders without a key are refused here; elsewhere a key is looked at where there is one.
    let orders = Route { pattern: Some(Pattern::parse("POST /orders")?), key: KeyRule::Required, ..Route::default() };
    let layer = IdempotencyLayer::new(door.clone()).routes(Routes::new(vec![orders], Route::default()));
    let app = Router::new().route("/orders", post(make_order)).layer(layer);

    let listener = tokio::net::TcpListener::bind(variable("LISTEN", "127.0.0.1:3000")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let ended = async { drop(tokio::signal::ctrl_c().await) };
    axum::serve(listener, app).with_graceful_shutdown(ended).await?;
    // Orders whose callers have left are finished too.
    door.drain(std::time::Duration::from_secs(30)).await;
    Ok(())
}
