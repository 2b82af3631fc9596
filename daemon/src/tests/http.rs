use super::*;

const HOLD: Duration = Duration::from_secs(10);

fn slots(overall: usize) -> Arc<Slots> {
    Slots::new(ServerLimits {
        per_listener: overall,
        overall,
        waiting: HOLD,
        answering: HOLD,
        header: HOLD,
        stuck: HOLD,
        total: None,
        stop: HOLD,
    })
}

#[tokio::test(start_paused = true)]
async fn the_one_that_is_there_longest_makes_room_after_its_minimum_time() {
    let slots = slots(2);
    let start = Instant::now();
    let (_first, first_leaves) = slots.take(0).await;
    let (_second, second_leaves) = slots.take(0).await;
    let (_third, _) = slots.take(0).await;
    assert_eq!(start.elapsed(), HOLD);
    timeout(Duration::ZERO, first_leaves.notified()).await.unwrap();
    timeout(Duration::ZERO, second_leaves.notified()).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_is_given_back_is_free_at_once() {
    let slots = slots(1);
    let start = Instant::now();
    let (first, leaves) = slots.take(0).await;
    let waiting = tokio::spawn({
        let slots = Arc::clone(&slots);
        async move { slots.take(0).await.0 }
    });
    tokio::task::yield_now().await;
    drop(first);
    waiting.await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
    timeout(Duration::ZERO, leaves.notified()).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn a_connection_with_a_request_stays_longer() {
    let slots = slots(2);
    let (first, first_leaves) = slots.take(0).await;
    first.prolong();
    let (_second, second_leaves) = slots.take(0).await;
    let start = Instant::now();
    let (third, _) = slots.take(0).await;
    third.prolong();
    timeout(Duration::ZERO, second_leaves.notified()).await.unwrap();
    timeout(Duration::ZERO, first_leaves.notified()).await.unwrap_err();
    let (_fourth, _) = slots.take(0).await;
    assert_eq!(start.elapsed(), 2 * HOLD);
    timeout(Duration::ZERO, first_leaves.notified()).await.unwrap();
}

/// A slot that was taken away is not freed a second time.
#[tokio::test(start_paused = true)]
async fn a_lost_slot_counts_once() {
    let slots = slots(1);
    let (first, _) = slots.take(0).await;
    let (_second, _) = slots.take(0).await;
    drop(first);
    timeout(HOLD / 2, slots.take(0)).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn a_full_listener_takes_no_slot_of_another() {
    let slots = Slots::new(ServerLimits { overall: 3, ..slots(2).limits });
    let (_other, other_leaves) = slots.take(0).await;
    let (_first, first_leaves) = slots.take(1).await;
    let _second = slots.take(1).await;
    let _third = slots.take(1).await;
    timeout(Duration::ZERO, first_leaves.notified()).await.unwrap();
    timeout(Duration::ZERO, other_leaves.notified()).await.unwrap_err();
}
