use dblock::distributed_lock;

fn main() {
    take(
        #[distributed_lock(key = "order")]
        async || {},
    );
}

fn take<T>(_: T) {}
