# %% [markdown]
# Train, look at the curve, act. The cells run in Jupyter and VS Code as they are, and as a script:
# `python docs/tasks/notebook.py`.

# %%
import packtrain

run = packtrain.train("ppo/cartpole", total_steps=8_000, eval_every=2_000, output_dir="runs/notebook", progress=False)

# %%
curve = run.metrics("eval")
for step, value in zip(curve["step"], curve["return_mean"], strict=True):
    print(f"{step:>7.0f} {'#' * int(value / 10)} {value:.0f}")

# %%
# With matplotlib: plt.plot(curve["step"], curve["return_mean"]); with pandas: run.metrics("eval").to_pandas()
policy = run.load(checkpoint="best")
env = packtrain.make_env("CartPole-v1")
obs, _ = env.reset(seed=1)
action, state = policy.predict(obs)
print("action", action)

# %%
result = packtrain.evaluate(run, num_episodes=10)
print(f"return {result['return_mean']:.1f} +- {result['return_ci95']:.1f}")
