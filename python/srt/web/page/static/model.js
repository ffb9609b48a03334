// The server's model: its name, its context, and how it is sampled unless a reader says otherwise.

import { askJson } from "./http.js";

// {name, names, context, vision, defaults}; `names` has adapters too.
export const model = { name: "", names: [], context: 0, vision: false, defaults: {} };

// Throws ApiError.
export async function learnModel() {
  const [{ data }, info] = await Promise.all([askJson("v1/models"), askJson("model_info")]);
  model.names = data.map(({ id }) => id);
  model.name = model.names[0];
  model.context = info.context_length;
  model.vision = info.vision;
  model.defaults = info.default_sampling_params ?? {};
}
