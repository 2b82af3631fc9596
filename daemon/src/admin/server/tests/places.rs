use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::{Place, Places};

const SHARE: Duration = Duration::from_secs(10);

async fn take(places: &Arc<Places>) -> (Place, Arc<Notify>) {
    let leave = Arc::new(Notify::new());
    (places.take(&leave).await, leave)
}

#[tokio::test(start_paused = true)]
async fn the_one_that_is_there_longest_makes_room_after_its_share() {
    let places = Places::new(2, SHARE);
    let start = Instant::now();
    let (_first, first_leaves) = take(&places).await;
    let (_second, second_leaves) = take(&places).await;
    let (_third, _) = take(&places).await;
    assert_eq!(start.elapsed(), SHARE);
    timeout(Duration::ZERO, first_leaves.notified()).await.unwrap();
    timeout(Duration::ZERO, second_leaves.notified()).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn a_place_that_is_given_back_is_free_at_once() {
    let places = Places::new(1, SHARE);
    let start = Instant::now();
    let (first, leaves) = take(&places).await;
    let waiting = tokio::spawn({
        let places = Arc::clone(&places);
        async move { take(&places).await.0 }
    });
    tokio::task::yield_now().await;
    drop(first);
    waiting.await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
    timeout(Duration::ZERO, leaves.notified()).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn protected_clients_stay_connected() {
    let places = Places::new(2, SHARE);
    let (first, first_leaves) = take(&places).await;
    first.stay();
    let (_second, second_leaves) = take(&places).await;
    let (third, _) = take(&places).await;
    timeout(Duration::ZERO, second_leaves.notified()).await.unwrap();
    third.stay();
    timeout(10 * SHARE, take(&places)).await.unwrap_err();
    timeout(Duration::ZERO, first_leaves.notified()).await.unwrap_err();
}

/// A place that was taken away is not freed a second time.
#[tokio::test(start_paused = true)]
async fn a_place_lost_counts_once() {
    let places = Places::new(1, SHARE);
    let (first, _) = take(&places).await;
    let (_second, _) = take(&places).await;
    drop(first);
    timeout(SHARE / 2, take(&places)).await.unwrap_err();
}
