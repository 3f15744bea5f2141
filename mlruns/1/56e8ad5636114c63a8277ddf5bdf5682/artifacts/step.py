def step(state: Any, batch: Any, key: Any) -> Any:
    state = state + batch.mean() + jax.random.normal(key)
    return state, {"loss": state**2, "client loss": jnp.stack([state, 2 * state])}
