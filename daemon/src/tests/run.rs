use tokio::sync::mpsc;

use super::*;

fn never() -> JoinHandle<()> {
    tokio::spawn(std::future::pending())
}

#[tokio::test(start_paused = true)]
async fn tasks_that_hang_keep_the_daemon_from_ending_for_less_than_ten_seconds() {
    let began = Instant::now();
    let ended = end([never(), never(), never()].into_iter(), never(), [never(), never()]).await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(ended.unwrap_err().code, Code::Internal);
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_has_ended_is_not_blamed_for_others_that_hang() {
    let owner = tokio::spawn(std::future::ready(()));
    end(std::iter::once(never()), owner, [never(), never()]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_written_in_time_is_waited_for() {
    let (reported, mut closed) = mpsc::channel::<()>(1);
    let slow = tokio::spawn(async move {
        tokio::time::sleep(SHUTDOWN_TIMEOUT / 2).await;
        reported.send(()).await.unwrap();
    });
    let ended = || tokio::spawn(std::future::ready(()));
    end(std::iter::once(slow), ended(), [ended(), ended()]).await.unwrap();
    assert!(closed.try_recv().is_ok());
}
