"""Records as the API's objects (reference: rest-api.md 7). Pure functions, a file per noun."""
